"""Histograms of latencies: buckets of at most 1 %, from 10 µs to 10 min, and exact counts at the limits that are
judged.

A bucket holds the values in (edge below, edge], in ms. Each limit is an edge, so `within(limit)` counts exactly, and a
percentile is shown above a limit if and only if it is above it."""

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from functools import cache
from typing import Any

LOWEST_MS = 0.01
HIGHEST_MS = 600_000.0
RATIO = 1.01


@cache
def _edges(limits: tuple[float, ...]) -> tuple[float, ...]:
    steps = math.ceil(math.log(HIGHEST_MS / LOWEST_MS) / math.log(RATIO))
    return tuple(sorted({LOWEST_MS * RATIO**step for step in range(steps + 1)} | set(limits)))


def bucket_ms(value_ms: float) -> float:
    """The upper edge of the value's bucket, at most 1 % above the value."""
    edges = _edges(())
    index = bisect_left(edges, value_ms)
    return edges[index] if index < len(edges) else value_ms


class Histogram:
    """Counts of latencies, ms; histograms with the same limits can be merged without loss."""

    __slots__ = ("_counts", "_edges", "count", "limits", "max_ms", "min_ms", "sum_ms")

    def __init__(self, limits: Iterable[float] = ()) -> None:
        self.limits = tuple(sorted(set(limits)))
        self._edges = _edges(self.limits)
        self._counts: dict[int, int] = {}
        self.count = 0
        self.sum_ms = 0.0
        self.min_ms = math.inf
        self.max_ms = 0.0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Histogram) and self.to_data() == other.to_data()

    def __repr__(self) -> str:
        return f"Histogram({self.count} values, max {self.max_ms:g} ms)"

    def add(self, value_ms: float, times: int = 1) -> None:
        """Counts a latency, `times` times."""
        index = bisect_left(self._edges, value_ms)
        self._counts[index] = self._counts.get(index, 0) + times
        self.count += times
        self.sum_ms += value_ms * times
        if value_ms < self.min_ms:
            self.min_ms = value_ms
        if value_ms > self.max_ms:
            self.max_ms = value_ms

    def merge(self, other: "Histogram") -> None:
        """Adds another histogram's counts to this one; ValueError if its limits differ."""
        if other.limits != self.limits:
            raise ValueError(f"limits differ: {self.limits} and {other.limits}")
        for index, times in other._counts.items():
            self._counts[index] = self._counts.get(index, 0) + times
        self.count += other.count
        self.sum_ms += other.sum_ms
        self.min_ms = min(self.min_ms, other.min_ms)
        self.max_ms = max(self.max_ms, other.max_ms)

    def since(self, earlier: "Histogram") -> "Histogram":
        """What was counted after `earlier`, a former state of this histogram. Its smallest and largest values are known
        to a bucket."""
        counts = {index: times - earlier._counts.get(index, 0) for index, times in self._counts.items()}
        made = Histogram(self.limits)
        made._counts = {index: times for index, times in counts.items() if times > 0}
        made.count = sum(made._counts.values())
        made.sum_ms = self.sum_ms - earlier.sum_ms
        if made._counts:
            low, high = min(made._counts), max(made._counts)
            made.min_ms = max(self.min_ms, self._edges[low - 1] if low else 0.0)
            made.max_ms = min(self.max_ms, self._edges[high] if high < len(self._edges) else self.max_ms)
        return made

    def buckets(self, edges: Sequence[float]) -> list[int]:
        """How many values lie in (edge before, edge], and above the last; exact if the edges are among the limits."""
        counts = [0] * (len(edges) + 1)
        for index, times in self._counts.items():
            counts[bisect_left(edges, self._edges[index]) if index < len(self._edges) else -1] += times
        return counts

    def within(self, limit_ms: float) -> int:
        """How many values are at most `limit_ms`, exactly; KeyError if it is not one of the limits."""
        if limit_ms not in self.limits:
            raise KeyError(limit_ms)
        last = bisect_left(self._edges, limit_ms)
        return sum(times for index, times in self._counts.items() if index <= last)

    def over(self, value_ms: float, *, own_bucket: bool = False) -> int:
        """How many values are above `value_ms`, without those in its own bucket, or with them."""
        own = bisect_left(self._edges, value_ms) - own_bucket
        return sum(times for index, times in self._counts.items() if index > own)

    def percentile(self, share: float) -> float | None:
        """The nearest-rank percentile: the smallest value that at least `share` of all values do not exceed.

        Returns the upper edge of its bucket, or the largest value if that is lower. So the result is never below the
        true value and at most 1 % above it. None if there are no values."""
        if not self.count:
            return None
        return self.ranked(nearest_rank(share, self.count))

    def ranked(self, rank: int) -> float:
        """The value of rank `rank` (from 1), as `percentile` shows it."""
        return next(value for seen, value in self._cumulated() if seen >= rank)

    @property
    def mean_ms(self) -> float | None:
        """The exact mean; None if there are no values."""
        return self.sum_ms / self.count if self.count else None

    def curve(self) -> Iterator[tuple[float, float]]:
        """The percentile curve: (share of values, latency) for each bucket that is not empty, in rising order."""
        return ((seen / self.count, value) for seen, value in self._cumulated())

    def _cumulated(self) -> Iterator[tuple[int, float]]:
        """For each bucket that is not empty, how many values it and those before it hold, and its largest value."""
        seen = 0
        for index, times in sorted(self._counts.items()):
            seen += times
            yield seen, min(self._edges[index], self.max_ms) if index < len(self._edges) else self.max_ms

    def to_data(self) -> dict[str, Any]:
        """The histogram as JSON: buckets are [upper edge in ms, count]; the edge of values over 10 min is null."""
        top = len(self._edges)
        buckets = [
            [self._edges[index] if index < top else None, times] for index, times in sorted(self._counts.items())
        ]
        low = self.min_ms if self.count else None
        return {
            "limits": list(self.limits),
            "count": self.count,
            "sum_ms": self.sum_ms,
            "min_ms": low,
            "max_ms": self.max_ms if self.count else None,
            "buckets": buckets,
        }

    @classmethod
    def of_counts(cls, counts: Iterable[int]) -> "Histogram":
        """A histogram without limits, from the counts of all its buckets. Its values are known to a bucket."""
        made = cls()
        for index, times in enumerate(counts):
            if times:
                edge = made._edges[min(index, len(made._edges) - 1)]
                made.add(edge if index < len(made._edges) else edge * RATIO, times)
        return made

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> "Histogram":
        """Reads what `to_data` wrote."""
        made = cls(data["limits"])
        for edge, times in data["buckets"]:
            made._counts[len(made._edges) if edge is None else bisect_left(made._edges, edge)] = times
        made.count = data["count"]
        made.sum_ms = data["sum_ms"]
        if made.count:
            made.min_ms, made.max_ms = data["min_ms"], data["max_ms"]
        return made


def nearest_rank(share: float, count: int) -> int:
    """The rank of a percentile among `count` values, from 1. Exact, although 0.07 * 100 is more than 7 in floats."""
    return max(1, math.ceil(Fraction(str(share)) * count))
