"""`make bench-compare`: how often a comparison is wrong, on pairs of servers whose difference is known.

Simulated are one worker on a quiet machine and on one that a neighbour slows down now and then; `same` is the same
server twice, and a FAIL of it an alarm. With `--real N` as many real comparisons of each kind follow, of a small server
that answers after 10 ms, and one with a generator that has more to send than it can.

    python tests/bench/comparing/bench_compare.py [--pairs 20] [--same 1000] [--real 0]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "loadtest")]

from loadtest_rig import SPEC, behave, running_server, write_package  # noqa: E402
from pairs import BURSTY, QUIET, compared  # noqa: E402

from config.load import parse_spec  # noqa: E402
from loadtest.comparing import Comparison, Pairing, compare  # noqa: E402
from loadtest.running import Where  # noqa: E402

_DELAY_MS = 10
_CASES = {"same": 0.0, "10 % slower": 0.1, "30 % slower": 0.3, "50 % slower": 0.5}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20, help="simulated comparisons of each difference")
    parser.add_argument("--same", type=int, default=1000, help="simulated comparisons without one, on each machine")
    parser.add_argument("--real", type=int, default=0, help="real comparisons of each kind")
    parser.add_argument("--seed", type=int, default=0, help="of the first one; others are other dice")
    options = parser.parse_args()
    print(f"{'':<34} {'pairs':>6} {'PASS':>6} {'FAIL':>6} {'INVALID':>8}")
    for machine, name in ((QUIET, "quiet"), (BURSTY, "bursty")):
        for case, injected in _CASES.items():
            count = options.pairs if injected else options.same
            seeds = range(options.seed, options.seed + count)
            print_row(f"simulated, {name}, {case}", (compared(injected, machine, seed).status for seed in seeds))
    if options.real:
        with tempfile.TemporaryDirectory() as folder:
            real(Path(folder), options.real)


def real(folder: Path, count: int) -> None:
    """Two servers of this machine, each with its delay."""
    spec = parse_spec(SPEC.replace("p99_ms: 2000", "p99_ms: 200"), folder / "spec.yaml", files=False)
    write_package(folder / "new")
    with ExitStack() as stack:
        old, new = (stack.enter_context(running_server(folder / name)) for name in ("old", "new"))

        def one(later: float, seed: int, rate: float = 100) -> Comparison:
            behave(old, delay_ms=_DELAY_MS)
            behave(new, delay_ms=_DELAY_MS * (1 + later))
            how = Pairing(rate=rate, turn_s=3, warmup_s=0.5, seed=100 * seed, max_duration_s=200)
            return compare(spec, old, how, Where(out=folder / "new", url=new), quiet=True)

        for case, later in list(_CASES.items())[:3]:
            print_row(f"real, {case}", (one(later, seed).status for seed in range(count)))
        print_row("real, generator saturated", (one(0, seed, 20_000).status for seed in range(1)))


def print_row(name: str, statuses: Iterator[str]) -> None:
    found = Counter(statuses)
    counts = "".join(f" {found[status]:>{width}}" for status, width in (("PASS", 6), ("FAIL", 6), ("INVALID", 8)))
    print(f"{name:<34} {found.total():>6}{counts}", flush=True)


if __name__ == "__main__":
    main()
