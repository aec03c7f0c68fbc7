"""The knee: the highest rate that meets the objective, found by raising and bisecting, then found again. Pure.

What a trial is, the caller says; here is only which rate to try next and when to stop.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Literal

from loadtest.units import figure

Status = Literal["PASS", "FAIL", "INVALID"]
Trial = Callable[[float], Status]
"""Loads the server at a rate; INVALID means that this run says nothing."""

TOLERANCE = 0.03
AGREEMENT = 0.10
_RAISE, _RAISE_AGAIN = 2.0, 1.12
_ELSEWHERE = 0.95
_TRIES = 4
_BURST_RAISE, _KEPT_UP = 4.0, 0.9
_LOWEST_RPS = 0.5
_HIGHEST_RPS = 100_000.0


class Untrusted(Exception):
    """Raised when no trusted answer can be had at a rate; says why."""


class NeverHeld(Untrusted):
    """Raised when the objective does not hold at any rate."""


@dataclass(frozen=True)
class Knee:
    """The median of several searches, and what they found each."""

    rps: float
    found: tuple[float, ...]

    @property
    def spread(self) -> float:
        """Range of the searches, as a share of the knee."""
        return (max(self.found) - min(self.found)) / self.rps

    @property
    def agrees(self) -> bool:
        """Whether the searches are near enough to each other to be believed."""
        return self.spread <= AGREEMENT


def estimate(held: Callable[[float], float], first: float) -> float:
    """What a server roughly holds: bursts at ever higher rates, until it answers clearly less than it is asked.

    Only a place to start the search from; a burst is too short to be judged.
    """
    rate = first
    while (answered := held(rate)) >= _KEPT_UP * rate and rate < _HIGHEST_RPS:
        rate *= _BURST_RAISE
    return max(answered, _LOWEST_RPS)


def find_knee(trial: Trial, first: float, repeats: int, tolerance: float = TOLERANCE) -> Knee:
    """Searches from `first`, then again from what was found; Untrusted when a rate cannot be judged or none passes."""
    found = [_search(trial, first, _RAISE, tolerance)]
    while len(found) < repeats:
        # From another start, or every search would try the same rates and agree only by that.
        found.append(_search(trial, _ELSEWHERE * found[-1], _RAISE_AGAIN, tolerance))
    return Knee(median(found), tuple(found))


def _search(trial: Trial, start: float, step: float, tolerance: float) -> float:
    """One search: out from `start` until one rate passes and one fails, then in between."""
    if _passes(trial, start):
        low, high = start, start * step
        while _passes(trial, high):
            low, high = high, high * step
            if high > _HIGHEST_RPS:
                raise Untrusted(f"the objective still holds at {low:,.0f} requests/s, the highest rate tried")
    else:
        low, high = start / step, start
        while not _passes(trial, low):
            low, high = low / step, low
            if low < _LOWEST_RPS:
                raise NeverHeld(f"the objective does not hold even at {high:.3g} requests/s")
    while high / low > 1 + tolerance:
        middle = math.sqrt(low * high)
        if _passes(trial, middle):
            low = middle
        else:
            high = middle
    return low


def _passes(trial: Trial, rate: float) -> bool:
    """A trusted answer at a rate, tried again while it is INVALID."""
    for _ in range(_TRIES):
        status = trial(rate)
        if status != "INVALID":
            return status == "PASS"
    raise Untrusted(f"{_TRIES} runs at {figure(rate)} requests/s were INVALID")
