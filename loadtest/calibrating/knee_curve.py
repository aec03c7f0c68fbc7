"""Fits the knee to many runs: a curve of how the share of requests over the limit rises with the rate. No I/O.

Near the knee, the odds that a request is over the limit grow with a power of the rate. The knee is where that curve
crosses the share that the objective allows. Its interval holds the crossings that fit the runs nearly as well (a
profile likelihood). Requests in a queue are late in clumps, so each run counts only as many requests as are
independent."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

# Further away from the knee the curve has another shape.
_NEAR = 1.2
# At the ends of a 99 % interval, twice the log-likelihood has fallen by this much.
_FALL = 6.63
_STEPS, _REACH = 240, 1.5
_STEEPEST, _FLATTEST = 300.0, 3.0
_ROUNDS = 40


@dataclass(frozen=True)
class Point:
    """The result of a run: at this rate, `over` of `total` requests were over the limit."""

    rate: float
    over: float
    total: float


@dataclass(frozen=True)
class FittedKnee:
    """The knee and its interval, requests/s."""

    rps: float
    low: float
    high: float


def fit_knee(points: Sequence[Point], share: float, about: float, clumps: float) -> FittedKnee | None:
    """The rate near `about` at which `share` of the requests are over the limit; None if the runs do not show one.

    `clumps` is how many requests carry as much information as one independent request."""
    near = [point for point in points if point.total and about / _NEAR <= point.rate <= about * _NEAR]
    if not any(point.over > share * point.total for point in near):
        return None
    if not any(point.over <= share * point.total for point in near):
        return None
    odds = math.log(share / (1 - share))
    rates = [about * _REACH ** (step / _STEPS) for step in range(-_STEPS, _STEPS + 1)]
    steep = 20.0
    likely = []
    for rate in rates:
        steep, likelihood = _likeliest(near, rate, odds, clumps, steep)
        likely.append(likelihood)
    best = max(likely)
    # If runs differ from each other more than chance explains, the interval becomes wider.
    spread = _dispersion(near, rates[likely.index(best)], odds, clumps)
    inside = [rate for rate, likelihood in zip(rates, likely, strict=True) if 2 * (best - likelihood) / spread <= _FALL]
    flat = [rate for rate, likelihood in zip(rates, likely, strict=True) if best - likelihood < 1e-3]
    return FittedKnee(math.sqrt(flat[0] * flat[-1]), inside[0], inside[-1])


def _likeliest(points: Sequence[Point], knee: float, odds: float, clumps: float, start: float) -> tuple[float, float]:
    """The steepness that fits best if the knee is at `knee`, and its log-likelihood, found by Newton's method."""
    steep = start
    for _ in range(_ROUNDS):
        slope = curve = 0.0
        for point in points:
            at = math.log(point.rate / knee)
            chance = _chance(odds + steep * at)
            slope += at * (point.over - point.total * chance)
            curve += at * at * point.total * chance * (1 - chance)
        if curve <= 0:
            break
        step = max(-0.5 * steep, min(steep, slope / curve))
        before, steep = steep, max(_FLATTEST, min(_STEEPEST, steep + step))
        if abs(steep - before) < 1e-3 * steep:
            break
    return steep, _likelihood(points, knee, odds, steep) / clumps


def _likelihood(points: Sequence[Point], knee: float, odds: float, steep: float) -> float:
    total = 0.0
    for point in points:
        chance = _chance(odds + steep * math.log(point.rate / knee))
        total += point.over * math.log(chance) + (point.total - point.over) * math.log1p(-chance)
    return total


def _dispersion(points: Sequence[Point], knee: float, odds: float, clumps: float) -> float:
    steep, _ = _likeliest(points, knee, odds, clumps, 20.0)
    excess = 0.0
    for point in points:
        chance = _chance(odds + steep * math.log(point.rate / knee))
        excess += (point.over - point.total * chance) ** 2 / (clumps * point.total * chance * (1 - chance))
    return max(1.0, excess / max(1, len(points) - 2))


def _chance(odds: float) -> float:
    return min(1 - 1e-12, max(1e-12, 1 / (1 + math.exp(-max(-60.0, min(60.0, odds))))))
