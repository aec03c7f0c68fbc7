"""From the runs of a search to the knee with an interval that holds the true one. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from loadtest.calibrating.knee import Knee
from loadtest.calibrating.knee_curve import FittedKnee, Point, fit_knee
from loadtest.judging import P99_SHARE, Objective, Verdict, failed_clumps, judged_tails, missed_clumps, slow_clumps
from loadtest.measuring import Measurement

# Runs this near to the knee show how late requests come in clumps there.
_NEAR = 1.15
# What fits but is as far from what the search found is of a server that the curve does not describe.
_AS_FOUND = 1.2

Runs = Sequence[tuple[Measurement, Verdict]]


def fitted_knee(runs: Runs, searched: Knee, about: float, objective: Objective) -> Knee:
    """The knee where a p99, the errors or the goodput cross their limit, whichever comes first; where none does,
    as of a server that fails all at once, between the highest rate that was held and the lowest that was not."""
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
    if fitted is None or not searched.rps / _AS_FOUND <= fitted.rps <= searched.rps * _AS_FOUND:
        fitted = _bracket(runs, searched)
    return replace(searched, rps=fitted.rps, interval=(fitted.low, fitted.high))


def _bracket(runs: Runs, searched: Knee) -> FittedKnee:
    """Between what was held and what was not, wherever those overlap."""
    around = [(run.rate, verdict.status) for run, verdict in runs if run.rate <= 2 * searched.rps]
    held = max((rate for rate, status in around if status == "PASS"), default=searched.rps)
    missed = min((rate for rate, status in around if status == "FAIL"), default=held)
    low, high = sorted((held, missed))
    return FittedKnee(low, low, high)
