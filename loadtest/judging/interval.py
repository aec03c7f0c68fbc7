"""The confidence interval of a share when late arrivals come in clumps. No I/O and no random numbers.

Latencies in a queue rise and fall together, so a thousand of them carry less information than a thousand independent
ones. How much less is the ratio of two variances: that of a block bootstrap (which resamples blocks of consecutive
slices, circularly; its variance has a closed form), and that of independent arrivals. The interval is then the exact
binomial one for a number of arrivals that is smaller by this ratio."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

# Each end of an interval is exceeded by one measurement in twenty.
CONFIDENCE = 0.95
# Blocks this many correlation times long are nearly independent; fewer than eight blocks show no variance.
_BLOCK_TIMES, _FEWEST_BLOCKS = 4, 8
# If several runs are pooled, each may have fewer blocks.
_FEWEST_BLOCKS_TOGETHER = 4
# The variance of few blocks is underestimated more often than overestimated. So it is raised until simulated queues
# that are judged five times while they run pass or fail wrongly less than once in twenty (`make bench-verdict`).
_CAUTION = 6.0
_WINDOW = 5
_HALVINGS, _TERMS, _PRECISION, _TINY = 50, 400, 1e-12, 1e-30


@dataclass(frozen=True)
class Counts:
    """For each slice, how many of its arrivals are over a limit."""

    over: Sequence[int]
    of: Sequence[int]

    @property
    def total(self) -> int:
        return sum(self.of)

    @property
    def share(self) -> float:
        """The share of all arrivals that are over the limit."""
        return sum(self.over) / self.total if self.total else 0.0

    @property
    def excess(self) -> list[float]:
        """For each slice, how many more arrivals are over the limit than the overall share predicts."""
        share = self.share
        return [over - share * of for over, of in zip(self.over, self.of, strict=True)]


def clumping(near: Counts, wide: Counts) -> float:
    """How many arrivals carry as much information as one independent arrival, estimated cautiously.

    `near` counts arrivals over the limit in question. `wide` counts those over a lower limit, which more arrivals
    cross, and so shows better for how long they stay over it."""
    if not 0 < near.share < 1:
        return 1.0
    variance = _variance(near, wide, _FEWEST_BLOCKS)
    return max(1.0, variance.squares / variance.independent) * (1 + _CAUTION / math.sqrt(variance.blocks))


def clumping_together(runs: Sequence[tuple[Counts, Counts]]) -> float:
    """The same, estimated from several runs with their `near` and `wide` counts: many blocks need less caution."""
    variances = [
        _variance(near, wide, _FEWEST_BLOCKS_TOGETHER) for near, wide in runs if near.total and 0 < near.share < 1
    ]
    independent = sum(variance.independent * variance.blocks for variance in variances)
    return (
        max(1.0, sum(variance.squares * variance.blocks for variance in variances) / independent)
        if independent
        else 1.0
    )


def clumping_within(*counts: Counts) -> float:
    """The same for slices that are apart in time, such as turns: only arrivals of the same slice share a fate."""
    independent = sum(side.total * side.share * (1 - side.share) for side in counts)
    squares = sum(
        sum(excess * excess for excess in side.excess) * len(side.of) / max(1, len(side.of) - 1) for side in counts
    )
    return max(1.0, squares / independent) if independent else 1.0


@dataclass(frozen=True)
class _Variance:
    """The variance of the arrivals over the limit in a block: as measured, and as if arrivals were independent."""

    squares: float
    independent: float
    blocks: float


def _variance(near: Counts, wide: Counts, fewest_blocks: int) -> _Variance:
    slices, share = len(near.of), near.share
    length = max(1, min(math.ceil(_BLOCK_TIMES * correlation_time(wide.excess)), slices // fewest_blocks))
    blocks = slices / length
    squares = sum(block * block for block in circular_sums(near.excess, length)) / slices
    independent = length * near.total / slices * share * (1 - share)
    return _Variance(squares * blocks / max(1.0, blocks - 1), independent, blocks)


def correlation_time(values: Sequence[float]) -> float:
    """Over how many neighbours values are correlated; 1 for independent values."""
    mean = sum(values) / len(values)
    centred = [value - mean for value in values]
    variance = sum(value * value for value in centred)
    if variance <= 0:
        return 1.0
    times = 1.0
    for lag in range(1, len(values) // 2):
        together = sum(map(float.__mul__, centred[lag:], centred)) / variance
        times += 2 * together
        # Further lags only add noise.
        if lag >= _WINDOW * max(1.0, times):
            break
    return max(1.0, times)


def most_surely_below(share: float, total: int, clumps: float) -> int:
    """How many of `total` arrivals may be over a limit so that certainly less than `share` are; -1 if not even none."""
    return _last(total, lambda over: _below(share, over / clumps, total / clumps) >= CONFIDENCE)


def fewest_surely_above(share: float, total: int, clumps: float) -> int:
    """How many of `total` must be over a limit so that certainly more than `share` are; `total` + 1 if not even all."""
    return 1 + _last(total, lambda over: _above(share, over / clumps, total / clumps) < CONFIDENCE)


def share_interval(over: int, total: int, clumps: float, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The confidence interval of a share; each end is exceeded by one measurement in twenty."""
    count, arrivals = over / clumps, total / clumps
    low = _root(lambda share: _above(share, count, arrivals) < confidence) if over else 0.0
    high = _root(lambda share: _below(share, count, arrivals) >= confidence) if over < total else 1.0
    return low, high


def difference_interval(
    old: Counts, new: Counts, low: float, high: float, *, clumps: float | None = None
) -> tuple[float, float]:
    """The interval of how much larger the share of `new` is than that of `old`; its ends are exceeded with the
    probabilities `low` and `high`. `clumps` is how many arrivals carry as much information as one independent arrival,
    by default that of slices that are apart in time.

    Newcombe's tenth method (1998), with the exact intervals of both shares."""
    clumps = clumping_within(old, new) if clumps is None else clumps

    def between(counts: Counts, wrong: float) -> tuple[float, float]:
        return share_interval(sum(counts.over), counts.total, clumps, 1 - wrong)

    least = math.hypot(new.share - between(new, low)[0], between(old, low)[1] - old.share)
    most = math.hypot(between(new, high)[1] - new.share, old.share - between(old, high)[0])
    difference = new.share - old.share
    return difference - least, difference + most


def arrivals_to_decide(share: float, measured: float, clumps: float) -> float:
    """About how many arrivals it takes to tell the measured share from `share`; infinite if they are equal."""
    if not measured and 0 < share < 1:
        return clumps * math.log(1 - CONFIDENCE) / math.log1p(-share)
    # 1.645 is the 95 % quantile of the normal distribution.
    distance = abs(measured - share)
    return math.inf if not distance else 1.645**2 * clumps * share * (1 - share) / distance**2


def circular_sums(values: Sequence[float], length: int) -> list[float]:
    """The sum of each block of `length` values, including the blocks that wrap around the end."""
    stretch, sums = sum(values[:length]), []
    for index, value in enumerate(values):
        sums.append(stretch)
        stretch += values[(index + length) % len(values)] - value
    return sums


def _below(share: float, over: float, total: float) -> float:
    """The confidence that the true share is below `share`."""
    return _beta(share, over + 1, max(total - over, 1e-9))


def _above(share: float, over: float, total: float) -> float:
    """The confidence that the true share is above `share`."""
    return 1 - _beta(share, over, total - over + 1) if over > 0 else 0.0


def _last(total: int, holds: Callable[[int], bool]) -> int:
    """The largest count up to `total` for which `holds` is true, if it is true for all smaller ones; -1 if for none."""
    low, high = -1, total
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def _root(is_above: Callable[[float], bool]) -> float:
    """The share at which `is_above` changes from false to true, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_above(middle) else (middle, high)
    return high


def _beta(x: float, a: float, b: float) -> float:
    """The distribution function of the beta distribution: the regularised incomplete beta function.

    A continued fraction, https://dlmf.nist.gov/8.17#v, which converges fast on this side of the mean."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta(1 - x, b, a)
    front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    fraction = upper = 1.0
    lower = 0.0
    for term in range(_TERMS):
        half = term // 2
        if term == 0:
            part = 1.0
        elif term % 2:
            part = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
        else:
            part = half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))
        lower = 1 / _away_from_zero(1 + part * lower)
        upper = _away_from_zero(1 + part / upper)
        fraction *= lower * upper
        if abs(1 - lower * upper) < _PRECISION:
            break
    return math.exp(front) * (fraction - 1) / a


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
