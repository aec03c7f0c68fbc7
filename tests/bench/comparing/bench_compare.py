"""`make bench-compare`: how often a comparison is wrong, on pairs of servers whose difference is known.

Simulated are one worker on a quiet machine and on one that a neighbour slows down now and then; `same` is the same
server twice, ten times as many, and a FAIL of it an alarm. Real ones are two small servers of which each answers after
`--delay` ms, or the new one later: `--same` how often both are alike, `--real` how often it is 10 % and 30 % later,
with the intervals of each. Beside them is one generator that spins.

Each comparison is kept in a file, and one that is there is not made again: what is stopped goes on where it was. Behind
each row is between which shares FAIL is in the long run (Clopper and Pearson's interval, 95 %).

    python tests/bench/comparing/bench_compare.py [--pairs 20] [--same 0] [--real 0] [--beside 1]
"""

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "loadtest")]

from loadtest_rig import SPEC, behave, running_server, spinning_generator, write_package  # noqa: E402
from pairs import BURSTY, QUIET, compared  # noqa: E402

from marina.config.load import parse_spec  # noqa: E402
from marina.loadtest.comparing import CompareOptions, compare, comparison_text  # noqa: E402
from marina.loadtest.judging.interval import share_interval  # noqa: E402
from marina.loadtest.running import TargetOptions  # noqa: E402

_RATE, _TURN_S, _MOST_S = 100, 0.5, 120
# The objective of the servers, in times of their delay; a generator that spins is told by how late it is.
_LIMIT, _SPINNING_MS = 10, 5
_LATER = (0.1, 0.3, 0.5)
_SAME_TIMES = 10
_MACHINES = {"bursty": BURSTY, "quiet": QUIET}
_STATUSES = ("PASS", "FAIL", "INVALID")
# What decides: what was kept of another state of it does not count.
_JUDGE = "loadtest/comparing"


@dataclass(frozen=True)
class Pair:
    """One comparison; its dice are those of the seed."""

    machine: str
    """Simulated, `quiet` or `bursty`, or `real`."""
    later: float
    seed: int
    delay_ms: float = 0
    """After which both servers of a real one answer."""
    spinning: bool = False
    """Whether the generator spins beside its work."""

    @property
    def row(self) -> str:
        """Where it is counted."""
        of = f"real, {self.delay_ms:g} ms" if self.machine == "real" else f"simulated, {self.machine}"
        return f"{of}, {'generator spins' if self.spinning else words(self.later)}"


@dataclass(frozen=True)
class Made:
    """What was said of a pair."""

    status: str
    text: str
    took_s: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20, help="simulated comparisons of each difference")
    parser.add_argument("--same", type=int, default=0, help="real comparisons of a server with itself")
    parser.add_argument("--real", type=int, default=0, help="real comparisons of each difference")
    parser.add_argument(
        "--delay", type=float, default=10, help="of the real servers, ms: the less, the more noise is it"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the first one; others are other dice")
    parser.add_argument(
        "--beside", type=int, default=1, help="comparisons at a time, real ones as each other's neighbours"
    )
    parser.add_argument("--minutes", type=float, default=1e9, help="begin none after so long; go on another time")
    parser.add_argument("--kept", type=Path, default=ROOT / "build/bench/compare.jsonl", help="what was made before")
    options = parser.parse_args()
    wanted = [*simulated(options.pairs, options.seed), *real(options.same, options.real, options.seed, options.delay)]
    kept = read_kept(options.kept)
    until = time.monotonic() + 60 * options.minutes
    waiting = [pair for pair in wanted if pair not in kept]
    with ProcessPoolExecutor(options.beside, mp_context=get_context("spawn")) as pool:
        asked = {pool.submit(make, pair, until): pair for pair in waiting}
        for each in as_completed(asked):
            pair, made = asked[each], each.result()
            if made is not None:
                kept[pair] = made
                keep(options.kept, pair, made)
                if pair.machine == "real":
                    print(f"  {pair.row}: {made.took_s:.0f} s, {made.text}", flush=True)
    print_table(wanted, kept)


def simulated(pairs: int, seed: int) -> list[Pair]:
    """Of each machine and difference."""
    counts = {0.0: _SAME_TIMES * pairs, **dict.fromkeys(_LATER, pairs)}
    return [
        Pair(machine, later, seed + number)
        for machine in _MACHINES
        for later, count in counts.items()
        for number in range(count)
    ]


def real(same: int, pairs: int, seed: int, delay_ms: float) -> list[Pair]:
    """Of two servers of this machine, each with its delay."""
    counts = {0.0: same, **dict.fromkeys(_LATER[:2], pairs)}
    spinning = [Pair("real", 0.0, seed, _SPINNING_MS, spinning=True)] * min(1, same + pairs)
    return spinning + [
        Pair("real", later, seed + number, delay_ms) for later, count in counts.items() for number in range(count)
    ]


def make(pair: Pair, until: float) -> Made | None:
    """Compares, unless it is too late to begin."""
    begun = time.monotonic()
    if begun > until:
        return None
    if pair.machine == "real":
        status, text = make_real(pair)
    else:
        said = compared(pair.later, _MACHINES[pair.machine], pair.seed)
        status, text = said.status, said.status
    return Made(status, text, time.monotonic() - begun)


def make_real(pair: Pair) -> tuple[str, str]:
    """Starts both servers, and compares them."""
    with tempfile.TemporaryDirectory() as name, spinning_generator(Path(name), pair.spinning, holds_s=0.02):
        folder = Path(name)
        spec = parse_spec(
            SPEC.replace("p99_ms: 2000", f"p99_ms: {_LIMIT * pair.delay_ms:g}"), folder / "spec.yaml", files=False
        )
        write_package(folder / "new")
        with running_server(folder / "old") as old, running_server(folder / "new") as new:
            behave(old, delay_ms=pair.delay_ms)
            behave(new, delay_ms=pair.delay_ms * (1 + pair.later))
            how = CompareOptions(rate=_RATE, turn_s=_TURN_S, max_duration_s=_MOST_S, seed=1000 * pair.seed)
            made = compare(spec, old, how, TargetOptions(out=folder / "new", url=new), quiet=True)
    return made.status, comparison_text(made).splitlines()[0]


def words(later: float) -> str:
    return f"{later:.0%} slower" if later else "same"


def judges() -> str:
    """What the code is that decides."""
    return sha256(b"".join(file.read_bytes() for file in sorted((ROOT / _JUDGE).glob("*.py")))).hexdigest()[:12]


def read_kept(file: Path) -> dict[Pair, Made]:
    """What this code said before."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    records = [record for record in map(json.loads, lines) if record["judges"] == judges()]
    return {Pair(**record["pair"]): Made(**record["made"]) for record in records}


def keep(file: Path, pair: Pair, made: Made) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps({"judges": judges(), "pair": asdict(pair), "made": asdict(made)}) + "\n")


def print_table(wanted: Sequence[Pair], kept: dict[Pair, Made]) -> None:
    """How often each answer was given of what was wanted, as far as it was made."""
    print(f"{'':<34} {'pairs':>6} {'PASS':>6} {'FAIL':>6} {'INVALID':>8} {'s each':>7}   FAIL in the long run")
    for row in dict.fromkeys(pair.row for pair in wanted):
        made = [kept[pair] for pair in wanted if pair.row == row and pair in kept]
        if made:
            counts = Counter(each.status for each in made)
            columns = "".join(f" {counts[status]:>{width}}" for status, width in zip(_STATUSES, (6, 6, 8), strict=True))
            low, high = share_interval(counts["FAIL"], len(made), 1, confidence=0.975)
            seconds = sum(each.took_s for each in made) / len(made)
            print(f"{row:<34} {len(made):>6}{columns} {seconds:>7.0f}   {low:.1%} to {high:.1%}", flush=True)


if __name__ == "__main__":
    main()
