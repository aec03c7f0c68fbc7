"""The options of `marina calibrate`."""

from typing import Annotated

from pydantic import Field

from marina.config.measured import Arrivals, Objective
from marina.loadtest.calibrating import knee
from marina.loadtest.judging import SPARE_SAMPLES, samples_needed
from marina.loadtest.running import SendingOptions

_SHORTEST_TRIAL_S, _LONGEST_GROWTH_S = 8.0, 60.0
# Slightly above the rate that a server holds, by this share, its queue must have the time to exceed the limit.
_GROWTH_SHARE = 0.03
# Neighbouring latencies of random arrivals rise and fall together; with fewer samples, simulated knees differ by 15 %.
_STEADY_SAMPLES: dict[Arrivals, float] = {"constant": 1.1, "poisson": 2.5}
# Enough to see when a rate is clearly held or clearly not held.
_FIRST_LOOK = 0.25
# The total measured time of a calibration, in lengths of one run at the knee, as simulated by `make bench-knee`.
_USUAL_LENGTHS = 19


class CalibrateOptions(SendingOptions):
    """The options of `marina calibrate`; None stands for a default that depends on the objective."""

    first: Annotated[float, Field(gt=0)] | None = None
    """Rate of the first run, requests/s; default: a little below what short bursts show."""
    trial_s: Annotated[float, Field(gt=0)] | None = None
    """Length of each run, unless a p99 needs more; default: also long enough for a queue to grow past the limit."""
    max_duration_s: Annotated[float, Field(gt=0)] | None = None
    """The longest measured time of all runs together; None: no limit."""
    warmup_s: Annotated[float, Field(ge=0)] = 2
    tolerance: Annotated[float, Field(gt=0, lt=1)] = knee.TOLERANCE
    """Half the width of the knee's interval, as a share of the knee: runs continue until it is that narrow."""

    def length_s(self, rate: float, objective: Objective) -> float:
        """How long a run at `rate` must be to be judged."""
        if self.trial_s is not None:
            return max(self.trial_s, SPARE_SAMPLES * samples_needed() / rate)
        return max(self._shortest_s(objective), _STEADY_SAMPLES[self.arrivals] * samples_needed() / rate)

    def first_look_s(self, rate: float, objective: Objective) -> float:
        """How long a rate is measured before the first judgement: a clear rate needs no more."""
        length_s = self.length_s(rate, objective)
        return length_s if self.trial_s is not None else max(self._shortest_s(objective), _FIRST_LOOK * length_s)

    def usual_s(self, rate: float, objective: Objective) -> float:
        """About how long a calibration takes whose knee is near `rate`."""
        return _USUAL_LENGTHS * (self.length_s(rate, objective) + self.warmup_s)

    def _shortest_s(self, objective: Objective) -> float:
        growth_s = min(_LONGEST_GROWTH_S, (objective.ttft_p99_ms or objective.p99_ms) / 1000 / _GROWTH_SHARE)
        return max(_SHORTEST_TRIAL_S, growth_s)
