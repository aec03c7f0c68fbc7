"""`make bench-knee`: how often the interval of a calibration holds the true knee, and how long it measures, on
simulated queues. Each calibration is that of `marina calibrate`: the same bursts, bisection, runs and confirming run,
in virtual time.

    python tests/bench/bench_knee.py [--runs 20] [--seed 0] [--others]
"""

import argparse
import math
import sys
from pathlib import Path
from statistics import fmean

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "loadtest")]

from queues import QUEUES, Queue, SimulatedSession, always, pausing, true_knee, two_workers, varying  # noqa: E402

from marina.config.measured import Knee, Objective  # noqa: E402
from marina.loadtest.calibrating import CalibrateOptions  # noqa: E402
from marina.loadtest.calibrating.trials import RateTrials  # noqa: E402

LIMITS_MS = (60.0, 150.0, 120.0)
# Faster, slower and pausing ones. The method was chosen by looking at all of them, so only a fresh `--seed` judges it.
OTHERS = [
    always(0.003),
    varying(0.025),
    two_workers([0.009, 0.011, 0.013, 0.015, 0.017, 0.019, 0.021, 0.023]),
    pausing(0.005, 2, 0.06),
]
OTHER_LIMITS_MS = (25.0, 300.0, 70.0, 80.0)


def calibration(queue: Queue, objective: Objective, seed: int) -> tuple[Knee, float]:
    """One of them, and how long it measured, s."""
    session = SimulatedSession(queue, objective, seed)
    trials = RateTrials(session, objective, CalibrateOptions(seed=1000 * seed))  # type: ignore[arg-type]
    knee = trials.narrow(trials.find(None))
    trials.confirm(0.7 * knee.rps)
    return knee, sum(schedule.total_s for schedule in session.schedules)


def row(queue: Queue, limit_ms: float, runs: int, seed: int) -> tuple[str, int]:
    """A line of the table, and how many intervals hold the true knee."""
    objective = Objective(p99_ms=limit_ms, error_rate=0.001, throughput_rps=None)
    truth = true_knee(queue, limit_ms)
    made = [calibration(queue, objective, seed + number) for number in range(runs)]
    knees = [knee for knee, _ in made]
    held = sum(knee.interval is not None and knee.interval[0] <= truth <= knee.interval[1] for knee in knees)
    errors = [abs(math.log(knee.rps / truth)) for knee in knees]
    text = (
        f"{queue.name:<22} {limit_ms:>6g} ms {truth:>8.1f}  {fmean(error**2 for error in errors) ** 0.5:>6.1%} "
        f"{max(errors):>6.1%}  {held:>3} of {runs}  {fmean(2 * knee.width for knee in knees):>6.1%} "
        f"{max(2 * knee.width for knee in knees):>7.1%} {fmean(seconds for _, seconds in made):>8,.0f} s"
    )
    return text, held


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20, help="calibrations of each queue")
    parser.add_argument("--seed", type=int, default=0, help="of the first one; judge a change by fresh ones")
    parser.add_argument("--others", action="store_true", help="faster, slower and pausing queues")
    options = parser.parse_args()
    wide = f"{'width':>6} {'widest':>7} {'measured':>10}"
    print(f"{'':<22} {'limit':>9} {'true':>8}  {'error':>6} {'worst':>6}  {'held':>8}  {wide}")
    total = 0
    chosen = (OTHERS, OTHER_LIMITS_MS) if options.others else (QUEUES, LIMITS_MS)
    queues = list(zip(*chosen, strict=True))
    for queue, limit_ms in queues:
        text, held = row(queue, limit_ms, options.runs, options.seed)
        total += held
        print(text, flush=True)
    print(f"the interval holds the true knee in {total} of {len(queues) * options.runs} calibrations")


if __name__ == "__main__":
    main()
