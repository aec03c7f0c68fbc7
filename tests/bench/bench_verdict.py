"""`make bench-verdict`: how often a verdict is wrong, on simulated queues whose p99 is known.

Each queue is judged against a limit that it misses by 10 % and one that it meets with 10 % to spare, as `marina
loadtest` would: the same schedule, the same judgement, the same rule when to go on. Beside it, what the first run's p99
alone would have said, and what three such runs would have said of which none may fail.

    python tests/bench/bench_verdict.py [--runs 30] [--seed 0]
"""

import argparse
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "loadtest")]

from queues import QUEUES, Queue, always, measured, true_p99_ms, two_workers, varying, wandering  # noqa: E402

from marina.config.measured import Objective, VerdictStatus  # noqa: E402
from marina.loadtest.judging import judge  # noqa: E402
from marina.loadtest.running import RunOptions  # noqa: E402
from marina.loadtest.scheduling import Schedule  # noqa: E402

USED = (0.3, 0.5, 0.7, 0.85)
# Not what the judgement was tuned on. No short run shows how far the last of them wanders.
OTHERS = [
    always(0.003),
    varying(0.025),
    two_workers([0.009, 0.011, 0.013, 0.015, 0.017, 0.019, 0.021, 0.023]),
    wandering(0.020, 20),
]
LIMITS = {"10 % over": 1 / 1.1, "10 % under": 1 / 0.9}


@dataclass(frozen=True)
class Said:
    """What three ways of judging said of one load test, and how long the first of them took."""

    verdict: VerdictStatus
    point: VerdictStatus
    three: VerdictStatus
    measured_s: float


def load_test(queue: Queue, rate: float, limit_ms: float, seed: int) -> Said:
    """One `marina loadtest`."""
    objective = Objective(p99_ms=limit_ms, error_rate=0.001, throughput_rps=None)
    options = RunOptions(rate=rate, seed=1000 * seed)
    first: Schedule | None = options.schedule_of(rate, objective)
    runs = []
    schedule = first
    while schedule is not None and first is not None:
        runs.append(measured(queue, schedule, limit_ms, seed))
        schedule = options.next_schedule(first, objective, runs)
    assert first is not None
    points = [runs[0].response.percentile(0.99) or 0.0]
    for again in (501, 502):
        other = measured(queue, first.model_copy(update={"seed": first.seed + again}), limit_ms, seed)
        points.append(other.response.percentile(0.99) or 0.0)
    passed = [point <= limit_ms for point in points]
    return Said(
        verdict=judge(runs, objective).status,
        point="PASS" if passed[0] else "FAIL",
        three="PASS" if all(passed) else "FAIL",
        measured_s=sum(run.asked_s for run in runs),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20, help="load tests of each queue at each limit")
    parser.add_argument("--seed", type=int, default=0, help="of the first one; others are other dice")
    parser.add_argument("--others", action="store_true", help="queues that the judgement was not tuned on")
    options = parser.parse_args()
    print(
        f"{'':<22} {'use':>4} {'limit':>10}  {'PASS':>6} {'FAIL':>6} {'INVALID':>7} {'s':>5}   point of one, of three"
    )
    worst: Counter[str] = Counter()
    for queue in OTHERS if options.others else QUEUES:
        for used in USED:
            truth = true_p99_ms(queue, used * queue.most)
            for name, times in LIMITS.items():
                said = [
                    load_test(queue, used * queue.most, truth * times, options.seed + number)
                    for number in range(options.runs)
                ]
                wrong: VerdictStatus = "PASS" if times < 1 else "FAIL"
                for way in ("verdict", "point", "three"):
                    worst[way] = max(worst[way], round(100 * share([getattr(each, way) for each in said], wrong)))
                print(row(queue, used, name, said, wrong), flush=True)
    print("most often wrong:", ", ".join(f"{way} {percent} %" for way, percent in worst.items()))


def row(queue: Queue, used: float, name: str, said: list[Said], wrong: VerdictStatus) -> str:
    verdicts = [each.verdict for each in said]
    shares = " ".join(f"{share(verdicts, status):>6.1%}" for status in ("PASS", "FAIL", "INVALID"))
    points = [f"{share([getattr(each, way) for each in said], wrong):>6.1%}" for way in ("point", "three")]
    length = sum(each.measured_s for each in said) / len(said)
    return f"{queue.name:<22} {used:>4.0%} {name:>10}  {shares} {length:>6.0f}   {wrong} {', '.join(points)}"


def share(statuses: list[VerdictStatus], wanted: VerdictStatus) -> float:
    return statuses.count(wanted) / len(statuses)


if __name__ == "__main__":
    main()
