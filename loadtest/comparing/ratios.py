"""How sure a ratio of two servers is that were measured in turns, round after round. Pure, and without dice.

A round has one turn of each server under the same arrivals, one after the other, so what the schedule does to one it
does to the other, and without a difference new / old is as often above 1 as below. What the machine does from minute to
minute shows between rounds. So each round has one say, its own ratio, and the interval is that of Wilcoxon's test of
signed ranks: of the means of any two rounds as many are cut off at each end as chance may explain. A neighbour who
disturbs a round or two stretches it less than Student's interval, which is as wide as the worst round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, combinations_with_replacement
from statistics import median

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
    """The middle of the rounds' ratios (Hodges and Lehmann's), with its interval; nothing is known where a round has
    none."""
    if len(old) < 2 or min(*old, *new) <= 0:
        return UNKNOWN
    logs = [math.log(after / before) for before, after in zip(old, new, strict=True)]
    means = sorted((first + second) / 2 for first, second in combinations_with_replacement(logs, 2))
    cut, middle = _cut(len(logs)), math.exp(median(means))
    if not cut:
        return Ratio(middle, 0.0, math.inf)
    return Ratio(middle, math.exp(means[cut - 1]), math.exp(means[-cut]))


@cache
def _cut(rounds: int) -> int:
    """Which of the sorted means is the end of the interval, counted from 1; 0 where even the last says too little."""
    ways = [1]
    for rank in range(1, rounds + 1):
        longer = [*ways, *[0] * rank]
        ways = [count + (longer[at - rank] if at >= rank else 0) for at, count in enumerate(longer)]
    likely = list(accumulate(ways))
    return next(at for at, count in enumerate(likely) if count > (1 - _CONFIDENCE) * 2**rounds)
