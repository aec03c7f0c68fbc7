"""The knee: the highest rate that meets the objective, found by raising and bisecting, then found again. Pure.

What a trial is, the caller says; here is only which rate to try next and when to stop.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Literal

from loadtest.measuring import figure

Status = Literal["PASS", "FAIL", "INVALID"]
TrialFunction = Callable[[float], Status]
"""Loads the server at a rate; INVALID means that the generator could not measure it. Untrusted ends the search."""

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
    """Raised when no trusted answer can be had at a rate; says why."""


class NotMeasurable(Untrusted):
    """Raised when the generator cannot measure a rate, again and again."""


class NeverHeld(Untrusted):
    """Raised when the objective does not hold at any rate."""


Limit = Literal["objective", "generator"]
"""What ended a search: the objective broke, or nothing above could be measured, so the server may hold more."""


@dataclass(frozen=True)
class Knee:
    """Where it is, and what each search found."""

    rps: float
    """The median of the searches, until long runs measured it."""
    found: tuple[float, ...]
    limit: Limit = "objective"
    interval: tuple[float, float] | None = None
    """Holds the true knee in 19 of 20 calibrations; None before the long runs, and where the generator is the limit."""

    @property
    def width(self) -> float:
        """Half of the interval, as a share of the knee."""
        low, high = self.interval or (self.rps, self.rps)
        return (high - low) / 2 / self.rps

    @property
    def spread(self) -> float:
        """Range of the searches, as a share of the knee."""
        return (max(self.found) - min(self.found)) / self.rps

    @property
    def agrees(self) -> bool:
        """Whether the searches are near enough to each other to be believed."""
        return self.spread <= AGREEMENT


def estimate_capacity(held: Callable[[float], float], first: float) -> float:
    """What a server roughly holds: the most good answers of bursts at ever higher rates, asked for again until that no
    longer grows, since one that has just started answers faster every second.

    Only a place to start the search from; a burst is too short to be judged.
    """
    best = answered = 0.0
    for _ in range(_ESTIMATES):
        answered = _most_answered(held, first)
        if answered <= _GROWN * best:
            break
        best, first = answered, answered / _BURST_RAISE
    return max(best, answered, _LOWEST_RPS)


def _most_answered(held: Callable[[float], float], rate: float) -> float:
    """The good answers of the burst that had most, at rates that are raised until clearly fewer are good than asked."""
    most = 0.0
    while (answered := held(rate)) >= _KEPT_UP * rate and rate < _HIGHEST_RPS:
        most = max(most, answered)
        rate *= _BURST_RAISE
    return max(most, answered)


def find_knee(trial: TrialFunction, first: float, repeats: int, tolerance: float = TOLERANCE) -> Knee:
    """Searches from `first`, then again from what was found; Untrusted when nothing can be judged or none passes."""
    searches = [_KneeSearch(trial, tolerance).run(first, _RAISE)]
    while len(searches) < repeats:
        # From another start, or every search would try the same rates and agree only by that.
        searches.append(_KneeSearch(trial, tolerance).run(_ELSEWHERE * searches[-1].low, _RAISE_AGAIN))
    knees = tuple(search.low for search in searches)
    return Knee(median(knees), knees, "generator" if any(search.untrusted for search in searches) else "objective")


def holds(trial: TrialFunction, rate: float) -> bool:
    """A trusted answer at a rate, tried again while it is INVALID."""
    for _ in range(TRIES):
        status = trial(rate)
        if status != "INVALID":
            return status == "PASS"
    raise NotMeasurable(f"{TRIES} runs at {figure(rate)} requests/s were INVALID")


class _KneeSearch:
    """One search: out from a start until one rate passes and one does not, then in between."""

    def __init__(self, trial: TrialFunction, tolerance: float) -> None:
        self._trial = trial
        self._tolerance = tolerance
        self.low = 0.0
        """The highest rate that passed."""
        self.untrusted = False
        """Whether the rate above it, which ended the search, could not be measured."""

    def run(self, start: float, step: float) -> _KneeSearch:
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
        """Above a rate that passed, one that cannot be measured ends the search as one that fails would."""
        try:
            passed = holds(self._trial, rate)
        except NotMeasurable:
            self.untrusted = True
            return False
        # Only the last rate that did not pass says what the limit is.
        self.untrusted = self.untrusted and passed
        return passed
