"""The knee, with an interval that contains the true one, from the runs of a search. No I/O."""

from collections.abc import Sequence

from marina.loadtest.calibrating.knee import Knee
from marina.loadtest.calibrating.knee_curve import FittedKnee, Point, fit_knee
from marina.loadtest.judging import (
    P99_SHARE,
    Objective,
    Verdict,
    failed_clumps,
    judged_tails,
    missed_clumps,
    slow_clumps,
)
from marina.loadtest.measuring import Measurement

# Runs within this factor of the knee show in what clumps requests are late there.
_NEAR = 1.15
# A fit that is further away from the search's result is of a server that the curve does not describe.
_NEAR_SEARCH = 1.2

Runs = Sequence[tuple[Measurement, Verdict]]


def fitted_knee(runs: Runs, searched: Knee, about: float, objective: Objective) -> Knee:
    """The rate at which a p99, the errors or the goodput cross their limit, whichever comes first.

    If none does, as with a server that fails abruptly, the knee is between the highest rate that was held and the
    lowest that was not."""
    judged = [run for run, verdict in runs if verdict.status != "INVALID"]
    near = [run for run in judged if about / _NEAR <= run.rate <= about * _NEAR]
    failed = [Point(run.rate, run.failed, run.finished) for run in judged]
    fits = []
    for tail in judged_tails(objective):
        slow = [Point(run.rate, tail.of(run).over(tail.limit), tail.of(run).count) for run in judged]
        fits.append(fit_knee(slow, 1 - P99_SHARE, about, slow_clumps(near, tail.of)))
    if objective.goodput is not None:
        missed = [Point(run.rate, run.planned - run.streams.met, run.planned) for run in judged if run.streams]
        fits.append(fit_knee(missed, 1 - objective.goodput, about, missed_clumps(near)))
    if 0 < objective.error_rate < 1:
        fits.append(fit_knee(failed, objective.error_rate, about, failed_clumps(near)))
    fitted = min((tail_fit for tail_fit in fits if tail_fit), key=lambda tail_fit: tail_fit.rps, default=None)
    if fitted is None or not searched.rps / _NEAR_SEARCH <= fitted.rps <= searched.rps * _NEAR_SEARCH:
        fitted = _bracket(runs, searched)
    return searched.model_copy(update={"rps": fitted.rps, "interval": (fitted.low, fitted.high)})


def _bracket(runs: Runs, searched: Knee) -> FittedKnee:
    """The interval between the highest rate that was held and the lowest that was not, even if they overlap."""
    around = [(run.rate, verdict.status) for run, verdict in runs if run.rate <= 2 * searched.rps]
    held = max((rate for rate, status in around if status == "PASS"), default=searched.rps)
    missed = min((rate for rate, status in around if status == "FAIL"), default=held)
    low, high = sorted((held, missed))
    return FittedKnee(low, low, high)
