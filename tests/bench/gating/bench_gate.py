"""`make bench-gate`: how often a rollout's gate is wrong, on simulated live traffic whose truth is known.

A gate is announced from five minutes of the old revision alone, and stands for the requests that it announced. Beside
it, on the same windows, what thresholds and tests say that are used for this elsewhere.

    python tests/bench/gating/bench_gate.py [--equal 1000] [--changed 20] [--seed 0] [--processes 2]
"""

import argparse
import math
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "bench" / "gating")]

from rules import RULES  # noqa: E402
from traffic import SAME, Change, Traffic  # noqa: E402

from marina.loadtest.gating import (  # noqa: E402
    LiveLimits,
    LiveRounds,
    announced,
    judge_live,
    looks_at,
    wrong_at,
)

LIMITS = LiveLimits(error_rate=0.01, regression=0.2)
WINDOW_S, BEFORE = 5, 60
TRAFFICS = (
    Traffic("steady", together=0, alone=0, correlation=0),
    Traffic("wanders", failed=0.005),
    Traffic("wanders apart", alone=0.1),
    Traffic("busy", requests=200, failed=0.001),
)


@dataclass(frozen=True)
class Case:
    name: str
    change: Change = SAME
    slow_node: float = 1.0
    wanted: str = "PASS"


EQUAL = Case("equal")
CASES = (
    Case("equal, on a node 10 % slower", slow_node=1.1),
    Case("30 % slower", Change(slower=1.3), wanted="FAIL"),
    Case("p99 30 % slower, p50 equal", Change(tail_slower=1.3), wanted="FAIL"),
    Case("5 % answer 500", Change(failed=0.05), wanted="FAIL"),
)


@dataclass(frozen=True)
class Stood:
    """What a gate said, and others on the same windows."""

    said: str
    needed: int
    minutes: float
    others: dict[str, str]


def stand(traffic: Traffic, case: Case, seed: int) -> Stood:
    """One gate."""
    before = [each.old for each in traffic.simulate(BEFORE, 10**6 + seed, SAME)]
    need = announced(before, LIMITS)
    assert need is not None
    windows = max(need.windows, math.ceil(need.requests / traffic.requests))
    looks, live = looks_at(windows), LiveRounds()
    for number, each in enumerate(traffic.simulate(looks[-1], seed, case.change, case.slow_node), 1):
        live.rounds.append(each)
        if number in looks:
            said = judge_live(live, LIMITS, wrong_at(number, looks), last=False).status
            if said == "FAIL":
                break
    # The others stand for half an hour, or all the time if that is shorter.
    whole = list(traffic.simulate(360, seed, case.change, case.slow_node))
    others = {name: rule(whole) for name, rule in RULES.items()}
    return Stood(said, need.requests, number * WINDOW_S / 60, others)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--equal", type=int, default=1000, help="gates with equal revisions, over all traffics")
    parser.add_argument("--changed", type=int, default=20, help="gates of each other case, with each traffic")
    parser.add_argument("--seed", type=int, default=0, help="of the first one; others are other dice")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    print(f"{'':<32} {'':<14} {'gates':>5}  {'PASS':>5} {'FAIL':>5} {'INVALID':>7}  requests minutes", flush=True)
    with ProcessPoolExecutor(options.processes) as pool:
        for case in (EQUAL, *CASES):
            everything: list[Stood] = []
            for traffic in TRAFFICS:
                count = options.equal // len(TRAFFICS) if case is EQUAL else options.changed
                seeds = range(options.seed, options.seed + count)
                stood = list(pool.map(partial(stand, traffic, case), seeds, chunksize=5))
                everything += stood
                print(row(case.name, traffic.name, [each.said for each in stood]), spent(stood), flush=True)
            print(row(case.name, "all", [each.said for each in everything]))
            for name in RULES:
                print(row(f"  {name}", "all", [each.others[name] for each in everything]), flush=True)


def row(name: str, where: str, said: Sequence[str]) -> str:
    counts = Counter(said)
    shares = " ".join(f"{counts[status] / len(said):>{width}.1%}" for status, width in WIDTHS)
    return f"{name:<32} {where:<14} {len(said):>5}  {shares}"


WIDTHS = (("PASS", 5), ("FAIL", 5), ("INVALID", 7))


def spent(stood: Iterable[Stood]) -> str:
    stood = list(stood)
    return f"{median(each.needed for each in stood):>9,.0f} {median(each.minutes for each in stood):>7.0f}"


if __name__ == "__main__":
    main()
