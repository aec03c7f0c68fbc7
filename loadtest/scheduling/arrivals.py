"""When each request is due: a schedule fixed before the run, whatever the server does and however many processes send.

The Poisson schedule is conditioned on its count: as many arrivals as the rate asks for, at independent uniform times.
So a run neither fails nor passes because a seed happened to offer more or fewer requests than asked.
"""

from __future__ import annotations

import math
import random
from array import array
from bisect import bisect_left
from typing import Literal

from config.record import Part

Arrivals = Literal["constant", "poisson"]
Spacing = Literal["constant", "poisson", "replay"]
_FEWEST_SLICES, _SLICES_OF_RAMP = 120, 1000


class Trace(Part):
    """Arrivals as they were recorded, in seconds from the first of them."""

    times: tuple[float, ...]
    """Ascending."""
    length_s: float
    """After how long it begins again."""
    samples: tuple[str, ...] = ()
    """The files that were sent; none: the spec's own."""
    which: tuple[int, ...] = ()
    """For each arrival, which of the samples."""

    def until(self, length_s: float) -> int:
        """How many arrivals come in a time, played again and again."""
        rounds = math.floor(length_s / self.length_s)
        return rounds * len(self.times) + bisect_left(self.times, length_s - rounds * self.length_s)

    def at(self, index: int) -> float:
        """When an arrival comes, played again and again."""
        rounds, place = divmod(index, len(self.times))
        return rounds * self.length_s + self.times[place]

    def sample(self, index: int) -> int:
        """Which of the samples it sends."""
        return self.which[index % len(self.which)]


class Ramp(Part):
    """A rate that rises evenly, requests/s."""

    begin: float
    end: float

    @property
    def mean(self) -> float:
        """Over the whole of it."""
        return (self.begin + self.end) / 2

    def when(self, share: float) -> float:
        """After which share of the time this share of its arrivals has come."""
        squares = self.begin**2 + share * (self.end**2 - self.begin**2)
        return (math.sqrt(squares) - self.begin) / (self.end - self.begin)

    def rate(self, share: float) -> float:
        """After this share of the time."""
        return self.begin + share * (self.end - self.begin)


class Schedule(Part):
    """Arrivals of one run, in seconds from its start: a warm-up, then the measured window."""

    arrivals: Arrivals
    rate: float
    """The mean of the measured window."""
    warmup_s: float
    duration_s: float
    seed: int = 0
    trace: Trace | None = None
    """What the measured window plays, again and again, in place of arrivals at a rate."""
    ramp: Ramp | None = None
    """How the rate rises over the measured window."""

    @property
    def spacing(self) -> Spacing:
        """How the arrivals of the measured window follow each other."""
        return "replay" if self.trace else self.arrivals

    @property
    def planned(self) -> int:
        """Arrivals in the measured window."""
        return self.trace.until(self.duration_s) if self.trace else round(self.rate * self.duration_s)

    @property
    def count(self) -> int:
        """Arrivals of warm-up and window together."""
        return self._warming + self.planned

    @property
    def slices(self) -> int:
        """In how many stretches the measured window is counted: enough to resample it, or each step of a ramp."""
        return max(_SLICES_OF_RAMP if self.ramp else _FEWEST_SLICES, math.ceil(self.duration_s))

    @property
    def total_s(self) -> float:
        """Warm-up and window together."""
        return self.warmup_s + self.duration_s

    def times(self, part: int = 0, parts: int = 1) -> array[float]:
        """The arrivals of process `part` of `parts`, ascending; those of all parts together are always the same."""
        source = random.Random(self.seed)
        warmup = array("d", (self.warmup_s * share for share in self._shares(source, self._warming)))
        if self.trace:
            times = [self.trace.at(index) for index in range(self.planned)]
        else:
            place = self.ramp.when if self.ramp else float
            times = [self.duration_s * place(share) for share in self._shares(source, self.planned)]
        return (warmup + array("d", (self.warmup_s + time for time in times)))[part::parts]

    def which(self, weights: list[float]) -> list[int]:
        """For each arrival, which of so many bodies is sent; the same for the same seed."""
        if len(weights) == 1:
            return [0] * self.count
        source = random.Random(f"bodies {self.seed}")
        if self.trace and self.trace.which:
            warmup = source.choices(self.trace.which, k=self._warming)
            return warmup + [self.trace.sample(index) for index in range(self.planned)]
        return source.choices(range(len(weights)), weights, k=self.count)

    @property
    def _warming(self) -> int:
        return round((self.ramp.begin if self.ramp else self.rate) * self.warmup_s)

    def _shares(self, source: random.Random, count: int) -> list[float]:
        """After which shares of a time so many arrivals come, if its rate is even."""
        if self.arrivals == "constant":
            return [index / count for index in range(count)]
        return sorted(source.random() for _ in range(count))
