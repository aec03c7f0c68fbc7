"""How much larger a share of one revision's answers is than of the other's, when both serve at the same time. No I/O
and no random numbers.

What the traffic does from window to window hits both revisions and cancels out in the difference of their shares. What
remains may still be correlated: a pod that is slow in one window is slow in the next. So the interval of the
difference is that of fewer, independent requests. How many fewer is the ratio of two variances: that of blocks of
consecutive windows, and that of independent requests; and since few blocks show their variance badly, it is widened as
Student's distribution is."""

import math
from dataclasses import dataclass
from statistics import NormalDist

from marina.loadtest.judging import Counts, circular_sums, correlation_time, difference_interval

# As in `judging/interval.py`: blocks this many correlation times long are nearly independent, and there are at least
# eight of them.
BLOCK_TIMES, FEWEST_BLOCKS = 4, 8
# Overlapping blocks know their variance as well as this many times as many that do not overlap.
_OVERLAP = 1.5


@dataclass(frozen=True)
class Clumps:
    """How many requests carry as much information as one independent request."""

    size: float
    blocks: float
    """From how many blocks that was estimated."""
    windows: float
    """Over how many windows the difference is correlated."""

    def widened(self, wrong: float) -> float:
        """The size with which an interval, whose end is exceeded with the probability `wrong`, allows for the few
        blocks."""
        normal = -NormalDist().inv_cdf(wrong)
        return max(1.0, self.size * (student(wrong, _OVERLAP * self.blocks) / normal) ** 2)


def clumps(old: Counts, new: Counts, *wider: tuple[Counts, Counts]) -> Clumps:
    """Estimated from the difference in each window. `wider` are counts of what is less rare, and so shows better over
    how many windows the difference is correlated."""
    differences = _differences(old, new)
    times = max(correlation_time(each) for each in (differences, *(_differences(*pair) for pair in wider)))
    count = len(differences)
    length = max(1, min(math.ceil(BLOCK_TIMES * times) if times > 1 else 1, count // FEWEST_BLOCKS))
    blocks = count / length
    independent = sum(each.share * (1 - each.share) / each.total for each in (old, new) if each.total)
    if not independent:
        return Clumps(1.0, blocks, times)
    squares = sum(block * block for block in circular_sums(differences, length)) / length
    return Clumps(max(1.0, squares * blocks / max(1.0, blocks - 1) / independent), blocks, times)


def surplus(old: Counts, new: Counts, known: Clumps, low: float, high: float) -> tuple[float, float]:
    """The interval of how much larger the share of `new` is; its ends are exceeded with the probabilities `low` and
    `high`."""
    least, _ = difference_interval(old, new, low, low, clumps=known.widened(low))
    _, most = difference_interval(old, new, high, high, clumps=known.widened(high))
    return least, most


def student(wrong: float, freedom: float) -> float:
    """Student's quantile, by the first terms of its expansion around the normal one (Abramowitz and Stegun, 26.7.5)."""
    z = -NormalDist().inv_cdf(wrong)
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def _differences(old: Counts, new: Counts) -> list[float]:
    """What each window adds to the difference of the shares, beyond its expectation."""
    before, after = max(1, old.total), max(1, new.total)
    return [more / after - less / before for less, more in zip(old.excess, new.excess, strict=True)]
