"""How sure a ratio of two servers is that were measured in turns, round after round. Pure, and without dice.

A round has one turn of each server under the same arrivals, one after the other, so what the schedule does to one it
does to the other, and without a difference new / old is as often above 1 as below. What the machine does from minute to
minute shows between rounds. So each round has one say, its own ratio, and the interval follows from how they vary:
Student's, which is what drawing rounds again and again (the bootstrap of rounds) comes to, and wider for few.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from loadtest.judging import student

# Several figures are looked at several times, so each end is exceeded less often than that of a single interval: raised
# until two simulated servers without a difference FAIL less than once in twenty (`make bench-compare`).
_CONFIDENCE = 0.98


@dataclass(frozen=True)
class Ratio:
    """New / old over all rounds, and between which values it lies."""

    value: float
    low: float
    high: float

    @property
    def reach(self) -> float:
        """How far the ends are from the middle: a factor, as its logarithm."""
        return math.log(self.high / self.value) if math.isfinite(self.high) else math.inf


UNKNOWN = Ratio(1.0, 0.0, math.inf)


def ratio(old: Sequence[float], new: Sequence[float]) -> Ratio:
    """The geometric mean of the rounds' ratios, with its interval; nothing is known where one of them has none."""
    if len(old) < 2 or min(*old, *new) <= 0:
        return UNKNOWN
    logs = [math.log(after / before) for before, after in zip(old, new, strict=True)]
    middle = math.fsum(logs) / len(logs)
    variance = math.fsum((each - middle) ** 2 for each in logs) / (len(logs) - 1)
    reach = _student(len(logs) - 1) * math.sqrt(variance / len(logs))
    return Ratio(math.exp(middle), math.exp(middle - reach), math.exp(middle + reach))


@cache
def _student(freedom: int) -> float:
    return student(freedom, _CONFIDENCE)
