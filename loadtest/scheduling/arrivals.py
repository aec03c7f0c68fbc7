"""The schedule of a run: it is fixed before the run, whatever the server does and however many processes send.

The Poisson schedule has exactly as many arrivals as the rate requires, at independent, uniformly distributed times. So
no run fails or passes because its seed happened to offer more or fewer requests than wanted."""

import math
import random
from array import array
from bisect import bisect_left
from typing import Literal

from pydantic import model_validator

from marina.config.errors import InputError
from marina.config.measured import Arrivals
from marina.config.record import Part

Spacing = Literal["constant", "poisson", "replay"]
_FEWEST_SLICES = 120
# All times are drawn before the run; more than these need more memory than most machines have.
_MOST_ARRIVALS = 100_000_000
# Every second of a run is counted by itself, too.
_MOST_DAYS = 31


class Trace(Part):
    """Recorded arrivals, in seconds from the first of them."""

    times: tuple[float, ...]
    """The times in ascending order."""
    length_s: float
    """The time after which the trace is repeated."""
    samples: tuple[str, ...] = ()
    """The files of the recorded samples; empty: the spec's samples are sent."""
    which: tuple[int, ...] = ()
    """For each arrival, the index of its sample."""

    def count_until(self, length_s: float) -> int:
        """The number of arrivals in the first `length_s` seconds; the trace is repeated as often as necessary."""
        rounds = math.floor(length_s / self.length_s)
        return rounds * len(self.times) + bisect_left(self.times, length_s - rounds * self.length_s)

    def time_of(self, index: int) -> float:
        """The time of arrival `index`; the trace is repeated as often as necessary."""
        rounds, place = divmod(index, len(self.times))
        return rounds * self.length_s + self.times[place]

    def sample_of(self, index: int) -> int:
        """The index of the sample that arrival `index` sends."""
        return self.which[index % len(self.which)]


class Schedule(Part):
    """The arrivals of one run, in seconds from its start: first a warm-up, then the measured window."""

    arrivals: Arrivals
    rate: float
    """The mean rate of the measured window."""
    warmup_s: float
    duration_s: float
    seed: int = 0
    trace: Trace | None = None
    """A trace that the measured window repeats, instead of arrivals at a rate."""

    @model_validator(mode="after")
    def _check_arrivals(self) -> "Schedule":
        if self.rate * self.total_s > _MOST_ARRIVALS:
            text = f"{self.rate:g} requests/s for {self.total_s:g} s are more than {_MOST_ARRIVALS:,} requests"
            raise InputError(f"{text}, the most that one run may have", hint="a lower rate, or a shorter run")
        if (days := self.total_s / 86_400) > _MOST_DAYS:
            text = f"a run at {self.rate:g} requests/s would take {days:,.3g} days, allowed: {_MOST_DAYS}"
            raise InputError(text, hint="a higher rate, or a shorter run")
        return self

    @property
    def spacing(self) -> Spacing:
        """How the arrivals of the measured window are spaced."""
        return "replay" if self.trace else self.arrivals

    @property
    def planned(self) -> int:
        """The number of arrivals in the measured window."""
        return self.trace.count_until(self.duration_s) if self.trace else round(self.rate * self.duration_s)

    @property
    def count(self) -> int:
        """The number of arrivals in warm-up and window together."""
        return self._warmup_count + self.planned

    @property
    def slices(self) -> int:
        """The number of slices in which the window is counted: enough to resample them."""
        return max(_FEWEST_SLICES, math.ceil(self.duration_s))

    @property
    def total_s(self) -> float:
        """The length of warm-up and window together, seconds."""
        return self.warmup_s + self.duration_s

    def times(self, part: int = 0, parts: int = 1) -> "array[float]":
        """The arrivals of process `part` of `parts`, ascending; all parts together do not depend on their number."""
        source = random.Random(self.seed)
        warmup = array("d", (self.warmup_s * share for share in self._shares(source, self._warmup_count)))
        if self.trace:
            times = [self.trace.time_of(index) for index in range(self.planned)]
        else:
            times = [self.duration_s * share for share in self._shares(source, self.planned)]
        return (warmup + array("d", (self.warmup_s + time for time in times)))[part::parts]

    def choose_bodies(self, weights: list[float]) -> list[int]:
        """For each arrival, the index of the body to send, drawn by weight; the same for the same seed."""
        if len(weights) == 1:
            return [0] * self.count
        source = random.Random(f"bodies {self.seed}")
        if self.trace and self.trace.which:
            warmup = source.choices(self.trace.which, k=self._warmup_count)
            return warmup + [self.trace.sample_of(index) for index in range(self.planned)]
        return source.choices(range(len(weights)), weights, k=self.count)

    @property
    def _warmup_count(self) -> int:
        return round(self.rate * self.warmup_s)

    def _shares(self, source: random.Random, count: int) -> list[float]:
        """The shares of a time after which `count` arrivals come at a constant rate."""
        if self.arrivals == "constant":
            return [index / count for index in range(count)]
        return sorted(source.random() for _ in range(count))
