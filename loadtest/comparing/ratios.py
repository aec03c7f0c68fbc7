"""The ratio of two servers that were measured in turns, with its interval. No I/O and no random numbers.

In a round, each server has one turn under the same arrivals, one after the other. So the schedule affects both alike,
and if there is no difference, new / old is above 1 as often as below. What the machine does from second to second shows
as a difference between rounds. So each round counts once, with its own ratio, and the interval is that of Wilcoxon's
signed-rank test: of the sorted means of any two rounds, it cuts off as many at each end as chance may explain. A
neighbour who disturbs some rounds widens it less than Student's interval, which is as wide as the worst round."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, combinations_with_replacement
from statistics import NormalDist, median

from marina.loadtest.comparing.comparison import Round, responses
from marina.loadtest.judging import P99_SHARE

# With more rounds the sum of ranks is practically normal, and counting all the ways to get it takes long.
_COUNTED = 100
# The largest difference counts as at most this many steps, so that counting the ways of hundreds of rounds is quick.
_STEPS = 50
_HALVINGS = 40


@dataclass(frozen=True)
class Ratio:
    """New / old over all rounds, and its interval."""

    value: float
    low: float
    high: float

    def reach(self, limit: float) -> float:
        """The distance from the value to the end of the interval on the limit's side, as the logarithm of a factor."""
        if limit < self.value:
            return math.log(self.value / self.low) if self.low else math.inf
        return math.log(self.high / self.value) if math.isfinite(self.high) else math.inf


UNKNOWN = Ratio(1.0, 0.0, math.inf)


def ratio(old: Sequence[float], new: Sequence[float], low: float, high: float) -> Ratio:
    """The Hodges-Lehmann median of the rounds' ratios, with an interval whose ends are exceeded with the probabilities
    `low` and `high`. UNKNOWN if there are no rounds, or one has no ratio."""
    if not old or min(*old, *new) <= 0:
        return UNKNOWN
    logs = [math.log(after / before) for before, after in zip(old, new, strict=True)]
    means = sorted((first + second) / 2 for first, second in combinations_with_replacement(logs, 2))
    below, above = _cut(len(logs), low), _cut(len(logs), high)
    return Ratio(
        math.exp(median(means)),
        math.exp(means[below - 1]) if below else 0.0,
        math.exp(means[-above]) if above else math.inf,
    )


@cache
def _cut(rounds: int, wrong: float) -> int:
    """Which of the sorted means is the end of the interval, counted from 1; 0 if even the first is not certain."""
    if rounds > _COUNTED:
        ranks = rounds * (rounds + 1)
        return int(ranks / 4 + NormalDist().inv_cdf(wrong) * math.sqrt(ranks * (2 * rounds + 1) / 24))
    ways = [1]
    for rank in range(1, rounds + 1):
        longer = [*ways, *[0] * rank]
        ways = [count + (longer[at - rank] if at >= rank else 0) for at, count in enumerate(longer)]
    likely = list(accumulate(ways))
    return next(at for at, count in enumerate(likely) if count > wrong * 2**rounds)


def by_chance(more: Sequence[float]) -> float:
    """The probability that swaps alone give the new server at least as much of something rare, such as late answers.

    `more` is how much more the new server had in each round, negative if the old one had more. A few rounds have nearly
    all of what is rare, so neither the ratios of the rounds nor one ratio of all rounds says much. But if there were no
    difference, the two turns of each round could be swapped: all ways to swap them are equally likely, and it is
    counted how many of them give the new server at least as much. So a stall that hits either server decides nothing,
    but one that hits only the new server, again and again, does."""
    unit = max(1.0, max((abs(surplus) / _STEPS for surplus in more), default=1.0))
    steps = [step for surplus in more if (step := round(surplus / unit))]
    likely = [1.0]
    for step in map(abs, steps):
        longer = [*likely, *[0.0] * step]
        likely = [(part + (longer[at - step] if at >= step else 0.0)) / 2 for at, part in enumerate(longer)]
    return sum(likely[sum(step for step in steps if step > 0) :])


def late_line(rounds: Sequence[Round], allowed: float) -> float:
    """The latency above which an answer counts as late: one in a hundred of both servers' answers together is.

    For the new server it is `allowed` times as high. So it is the p99 of both if the new server is as much slower as
    allowed."""
    old, new = responses(rounds)
    most = (1 - P99_SHARE) * (old.count + new.count)
    low, high = min(old.min_ms, new.min_ms / allowed), max(old.max_ms, new.max_ms / allowed)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if old.over(middle) + new.over(allowed * middle) > most else (low, middle)
    return high


def more_late(rounds: Sequence[Round], line_ms: float, allowed: float) -> list[int]:
    """How many more late answers the new server gave than the old one, in each round."""
    return [turns.new.response.over(allowed * line_ms) - turns.old.response.over(line_ms) for turns in rounds]
