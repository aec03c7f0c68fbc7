"""The options of `marina drill`, and the schedule that follows from them."""

import math
from typing import Annotated

from pydantic import Field

from marina.loadtest.running import SendingOptions
from marina.loadtest.scheduling import Schedule

_WARMUP_S = 2.0


class DrillOptions(SendingOptions):
    """How the service is loaded, and when it must be whole again."""

    rate: Annotated[float, Field(gt=0)] | None = None
    """Requests/s; default: what all pods but one must hold."""
    before_s: Annotated[float, Field(ge=1)] = 5
    """How long the load is sent before anything is broken."""
    within_s: Annotated[float, Field(ge=1)] | None = None
    """How long it may take until there are enough pods again."""

    def schedule(self, rate: float, within_s: float, after_s: float) -> Schedule:
        """The longest that the load may take; it ends early once all is over."""
        duration_s = math.ceil(self.before_s + within_s + after_s)
        return Schedule(arrivals=self.arrivals, rate=rate, warmup_s=_WARMUP_S, duration_s=duration_s, seed=self.seed)

    @property
    def break_at_s(self) -> float:
        """When to break, from the start of the load."""
        return _WARMUP_S + self.before_s
