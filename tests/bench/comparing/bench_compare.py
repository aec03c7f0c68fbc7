"""`make bench-compare`: how often a comparison is wrong, on pairs of servers whose difference is known.

Simulated are one worker on a quiet machine and on one that a neighbour slows down now and then; `same` is the same
server twice, ten times as many, and a FAIL of it an alarm. Real ones are two small servers of which each answers after
10 ms, or the new one later: `--same` how often both are alike, `--real` how often it is 10 % and 30 % later, with the
intervals of each. Beside them is a generator that has more to send than it can.

    python tests/bench/comparing/bench_compare.py [--pairs 20] [--same 0] [--real 0]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "loadtest")]

from loadtest_rig import SPEC, behave, running_server, write_package  # noqa: E402
from pairs import BURSTY, QUIET, compared  # noqa: E402

from config.load import parse_spec  # noqa: E402
from loadtest.comparing import Comparison, Pairing, compare, comparison_text  # noqa: E402
from loadtest.running import Where  # noqa: E402

_DELAY_MS, _RATE, _TOO_FAST = 10, 100, 20_000
_LATER = (0.1, 0.3, 0.5)
_SAME_TIMES = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20, help="simulated comparisons of each difference")
    parser.add_argument("--same", type=int, default=0, help="real comparisons of a server with itself")
    parser.add_argument("--real", type=int, default=0, help="real comparisons of each difference")
    parser.add_argument("--seed", type=int, default=0, help="of the first one; others are other dice")
    options = parser.parse_args()
    print(f"{'':<34} {'pairs':>6} {'PASS':>6} {'FAIL':>6} {'INVALID':>8}")
    if options.pairs:
        simulated(options.pairs, options.seed)
    if options.same or options.real:
        real(options.same, options.real, options.seed)


def simulated(pairs: int, seed: int) -> None:
    """Of each machine and difference."""
    for machine, name in ((QUIET, "quiet"), (BURSTY, "bursty")):
        for later in (0.0, *_LATER):
            count = pairs if later else _SAME_TIMES * pairs
            statuses = (compared(later, machine, seed + number).status for number in range(count))
            print_row(f"simulated, {name}, {words(later)}", statuses)


def real(same: int, pairs: int, seed: int) -> None:
    """Of two servers of this machine, each with its delay."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spec = parse_spec(SPEC.replace("p99_ms: 2000", "p99_ms: 200"), folder / "spec.yaml", files=False)
        write_package(folder / "new")

        def pair(later: float, number: int, rate: float = _RATE) -> Comparison:
            with both(folder) as (old, new):
                behave(old, delay_ms=_DELAY_MS)
                behave(new, delay_ms=_DELAY_MS * (1 + later))
                how = Pairing(rate=rate, seed=1000 * (seed + number))
                return compare(spec, old, how, Where(out=folder / "new", url=new), quiet=True)

        for later, count in ((0.0, same), *((each, pairs) for each in _LATER[:2])):
            print_row(f"real, {words(later)}", (shown(pair(later, number)) for number in range(count)))
        print_row("real, generator saturated", (shown(pair(0.0, number, _TOO_FAST)) for number in range(1)))


@contextmanager
def both(folder: Path) -> Iterator[tuple[str, str]]:
    """Two servers that have just begun."""
    with running_server(folder / "old") as old, running_server(folder / "new") as new:
        yield old, new


def words(later: float) -> str:
    return f"{later:.0%} slower" if later else "same"


def shown(comparison: Comparison) -> str:
    print(f"  {comparison_text(comparison).splitlines()[0]}", flush=True)
    return comparison.status


def print_row(name: str, statuses: Iterable[str]) -> None:
    counts = Counter(statuses)
    columns = "".join(f" {counts[status]:>{width}}" for status, width in (("PASS", 6), ("FAIL", 6), ("INVALID", 8)))
    print(f"{name:<34} {counts.total():>6}{columns}", flush=True)


if __name__ == "__main__":
    main()
