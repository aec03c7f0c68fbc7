"""The search for the knee, the highest rate that meets the objective: raise the rate, then bisect, then do it again.

The caller provides the trial; this module only decides which rate to try next, and when to stop. No I/O."""

import math
from collections.abc import Callable
from statistics import median
from typing import Literal

from pydantic import computed_field

from marina.config.record import Part
from marina.loadtest.judging import VerdictStatus
from marina.loadtest.measuring import figure

TrialFunction = Callable[[float], VerdictStatus]
"""Whether a server holds a rate; INVALID if the generator could not measure it. Untrusted ends the search."""

TOLERANCE = 0.03
AGREEMENT = 0.10
_RAISE, _RAISE_AGAIN = 2.0, 1.12
_ELSEWHERE = 0.95
TRIES = 4
_BURST_RAISE, _KEPT_UP = 4.0, 0.9
_ESTIMATES, _GROWN = 4, 1.1
_LOWEST_RPS = 0.5
_HIGHEST_RPS = 100_000.0


class Untrusted(Exception):
    """Raised if no run at a rate can be trusted; its text says why."""


class NotMeasurable(Untrusted):
    """Raised if the generator repeatedly failed to measure a rate."""


class NeverHeld(Untrusted):
    """Raised if the objective does not hold at any rate."""


Limit = Literal["objective", "generator"]
"""What ended a search: the objective broke, or no higher rate could be measured, so that the server may hold more."""


class Knee(Part):
    """The highest rate that meets the objective, and what each search found."""

    rps: float
    """The median of the searches; after the long runs, the rate at which these say that the limit is crossed."""
    found: tuple[float, ...]
    """The rate at which each search ended."""
    limit: Limit = "objective"
    interval: tuple[float, float] | None = None
    """Holds the true knee in 19 of 20 calibrations; None before the long runs, and if the generator is the limit."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def spread(self) -> float:
        """The range of the searches' results, as a share of the knee."""
        return (max(self.found) - min(self.found)) / self.rps

    @property
    def width(self) -> float:
        """Half the width of the interval, as a share of the knee."""
        low, high = self.interval or (self.rps, self.rps)
        return (high - low) / 2 / self.rps

    @property
    def agrees(self) -> bool:
        """Whether the searches agree well enough to be believed."""
        return self.spread <= AGREEMENT


def estimate_capacity(held: Callable[[float], float], first: float) -> float:
    """Roughly the rate that a server holds: the most good answers per second in bursts at higher and higher rates.

    The bursts are repeated until that no longer grows, since a server that has just started gets faster every second.

    This is only a starting point for the search; a burst is too short to be judged."""
    best = answered = 0.0
    for _ in range(_ESTIMATES):
        answered = _most_answered(held, first)
        if answered <= _GROWN * best:
            break
        best, first = answered, answered / _BURST_RAISE
    return max(best, answered, _LOWEST_RPS)


def _most_answered(held: Callable[[float], float], rate: float) -> float:
    """The most good answers per second of one burst; the rate rises until clearly fewer answers are good than sent."""
    most = 0.0
    while (answered := held(rate)) >= _KEPT_UP * rate and rate < _HIGHEST_RPS:
        most = max(most, answered)
        rate *= _BURST_RAISE
    return max(most, answered)


def find_knee(trial: TrialFunction, first: float, repeats: int, tolerance: float = TOLERANCE) -> Knee:
    """Searches from `first`, then again from each result; Untrusted if nothing can be judged or no rate passes."""
    searches = [_KneeSearch(trial, tolerance).run(first, _RAISE)]
    while len(searches) < repeats:
        # Start elsewhere, or every search would try the same rates and agree only for that reason.
        searches.append(_KneeSearch(trial, tolerance).run(_ELSEWHERE * searches[-1].low, _RAISE_AGAIN))
    knees = tuple(search.low for search in searches)
    limit: Limit = "generator" if any(search.untrusted for search in searches) else "objective"
    return Knee(rps=median(knees), found=knees, limit=limit)


def holds(trial: TrialFunction, rate: float) -> bool:
    """Whether a rate is held; an INVALID run is repeated a few times."""
    for _ in range(TRIES):
        status = trial(rate)
        if status != "INVALID":
            return status == "PASS"
    raise NotMeasurable(f"{TRIES} runs at {figure(rate)} requests/s were INVALID")


class _KneeSearch:
    """One search: moves out from its start until one rate passes and one does not, then bisects."""

    def __init__(self, trial: TrialFunction, tolerance: float) -> None:
        self._trial = trial
        self._tolerance = tolerance
        self.low = 0.0
        """The highest rate that passed."""
        self.untrusted = False
        """Whether the next higher rate, which ended the search, could not be measured."""

    def run(self, start: float, step: float) -> "_KneeSearch":
        if holds(self._trial, start):
            self.low, high = start, start * step
            while self._passes(high):
                self.low, high = high, high * step
                if high > _HIGHEST_RPS:
                    raise Untrusted(
                        f"the objective still holds at {figure(self.low)} requests/s, the highest rate tried"
                    )
        else:
            self.low, high = start / step, start
            while not holds(self._trial, self.low):
                self.low, high = self.low / step, self.low
                if self.low < _LOWEST_RPS:
                    raise NeverHeld(
                        f"the objective does not hold even at {figure(high)} requests/s: one answer takes longer than "
                        "`slo.p99_ms` allows, or the machine is busy"
                    )
        while high / self.low > 1 + self._tolerance:
            middle = math.sqrt(self.low * high)
            if self._passes(middle):
                self.low = middle
            else:
                high = middle
        return self

    def _passes(self, rate: float) -> bool:
        """Whether a rate is held; above a rate that passed, one that cannot be measured counts as not held."""
        try:
            passed = holds(self._trial, rate)
        except NotMeasurable:
            self.untrusted = True
            return False
        # Only the last rate that did not pass shows what the limit is.
        self.untrusted = self.untrusted and passed
        return passed
