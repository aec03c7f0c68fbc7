"""When each request is due: a schedule fixed before the run, whatever the server does and however many processes send.

The Poisson schedule is conditioned on its count: as many arrivals as the rate asks for, at independent uniform times.
So a run neither fails nor passes because a seed happened to offer more or fewer requests than asked.
"""

from __future__ import annotations

import random
from array import array
from typing import Literal

from pydantic import BaseModel, ConfigDict

Arrivals = Literal["constant", "poisson"]


class Schedule(BaseModel):
    """Arrivals of one run, in seconds from its start: a warm-up, then the measured window."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    arrivals: Arrivals
    rate: float
    warmup_s: float
    duration_s: float
    seed: int = 0

    @property
    def planned(self) -> int:
        """Arrivals in the measured window."""
        return round(self.rate * self.duration_s)

    @property
    def count(self) -> int:
        """Arrivals of warm-up and window together."""
        return round(self.rate * self.warmup_s) + self.planned

    @property
    def total_s(self) -> float:
        """Warm-up and window together."""
        return self.warmup_s + self.duration_s

    def times(self, part: int = 0, parts: int = 1) -> array[float]:
        """The arrivals of process `part` of `parts`, ascending; those of all parts together are always the same."""
        source = random.Random(self.seed)
        warmup = self._window(source, 0.0, self.warmup_s, round(self.rate * self.warmup_s))
        return (warmup + self._window(source, self.warmup_s, self.duration_s, self.planned))[part::parts]

    def _window(self, source: random.Random, start: float, length: float, count: int) -> array[float]:
        if self.arrivals == "constant":
            return array("d", (start + index / self.rate for index in range(count)))
        return array("d", sorted(start + length * source.random() for _ in range(count)))
