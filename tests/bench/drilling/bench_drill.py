"""Drills of a service whose pods are real servers, many times over: requests lost, with and without the wait for load
balancers.

    python tests/bench/drilling/bench_drill.py [--drills 20] [--kinds evict shutdown rollout] [--rate 90]

Exit code 1 if a server that drains loses one, or one that does not loses none. The fake cluster's Service learns a
second late which pods are its endpoints."""

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent.parent
_TESTS = ("", "tests", "tests/bench", "tests/e2e", "tests/fake_cluster", "tests/server")
sys.path[:0] = [str(ROOT / folder) for folder in _TESTS]

from drills import Deployed, deployed  # noqa: E402
from process_tree import unwind_on_sigterm  # noqa: E402
from waiting import eventually  # noqa: E402

from marina.arguments import INTERRUPTED  # noqa: E402

KINDS = ("evict", "shutdown", "rollout")
NOTICE_S = 12.0


def one_drill(service: Deployed, kind: str, rate: float) -> tuple[str, int, Counter[str]]:
    """The verdict, how many requests were judged, and how many of them were lost, by the name of the error."""
    eventually(lambda: service.ready() == 2, within_s=600)
    load = ("--rate", f"{rate:g}", "--before", "2s", "--timeout", "6s", "--within", "300s")
    if service.drill(kind, "--yes-break-it", "--quiet", "--json", *load) == INTERRUPTED:
        sys.exit(INTERRUPTED)
    record = service.record
    return record["status"], record["judged"], Counter(record["lost"])


def main() -> int:
    """Prints a line for each kind of drill and server."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--drills", type=int, default=20)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--rate", type=float, default=90)
    options = parser.parse_args()
    unwind_on_sigterm()
    said, failed = sys.stdout, False
    print(f"{options.drills} drills of each kind, 2 pods, {options.rate:g} requests/s\n")
    print(f"{'':<36} {'judged':>8} {'lost':>6}  verdicts, errors", flush=True)
    with tempfile.TemporaryDirectory(prefix="bench-drill-") as folder:
        for name, notice_s, drills in (("drains", NOTICE_S, options.drills), ("does not wait", 0, 1)):
            with deployed(Path(folder) / name, drain_propagation_s=notice_s, access_log="off") as service:
                for kind in options.kinds:
                    if not notice_s and kind == "shutdown":
                        # Without a notice there is nothing within it.
                        continue
                    with open("/dev/null", "w") as sys.stdout:
                        ends = [one_drill(service, kind, options.rate) for _ in range(drills)]
                    sys.stdout = said
                    judged, lost = sum(end[1] for end in ends), sum((end[2] for end in ends), Counter[str]())
                    counted = Counter(end[0] for end in ends)
                    words = ", ".join(f"{count:,} {what}" for what, count in [*counted.items(), *lost.items()])
                    failed |= bool(lost) == bool(notice_s)
                    title = f"{kind}, a server that {name}"
                    print(f"{title:<36} {judged:>8,} {lost.total():>6,}  {words}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
