"""The options of `marina loadtest`, and the schedules that follow from them."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from marina.config.errors import InputError
from marina.config.record import Options
from marina.config.request_headers import CONTENT_TYPES
from marina.config.spec import Spec
from marina.loadtest.judging import (
    MOST_STEPS,
    SPARE_SAMPLES,
    STEP_REQUESTS,
    Objective,
    arrivals_needed,
    is_undecided,
    judge,
    samples_needed,
)
from marina.loadtest.measuring import Measurement
from marina.loadtest.scheduling import Arrivals, Ramp, Schedule, Trace, read_trace_file

_SHORTEST_S = 30
# While the verdict is undecided, more runs follow, until all together are this many times as long as the first.
_LONGER = 10
# A run shorter than this share of the first one would not tell anything more.
_SHORTEST_SHARE = 0.2
# A trend of the latency needs 48 seconds with answers after the first third.
_SHORTEST_SOAK_S = 75
Positive = Annotated[float, Field(gt=0)]
AtLeastOne = Annotated[int, Field(ge=1)]


def stated_rate(given: float | None, spec: Spec, objective: Objective, command: str) -> float:
    """The given rate, or else that of the objective, requests/s; InputError if there is neither."""
    rate = given or objective.throughput_rps
    if rate is None:
        text = f"{spec.file}: `slo.throughput_rps`: missing, and no `--rate` was given"
        raise InputError(text, hint=f"{command} --rate 50")
    return rate


class SendingOptions(Options):
    """How load is sent, in every stage that opens a session."""

    processes: AtLeastOne = 1
    arrivals: Arrivals = "poisson"
    seed: int = 0
    """The seed of the Poisson schedule; each further run adds one."""
    timeout_s: Positive | None = None
    """How long a client waits for an answer; default: twice the latency limit, at least 10 s."""


class RunOptions(SendingOptions):
    """The options of `marina loadtest`; None stands for a default that depends on the objective."""

    rate: Positive | None = None
    """Requests/s; default: the spec's `load.replay`, or its `slo.throughput_rps`."""
    replay: Path | None = None
    """A trace to replay instead of a rate; default: the spec's `load.replay`, unless a rate is given."""
    ramp: tuple[Positive, Positive] | None = None
    """A rate that rises linearly from the first to the second value, instead of one rate."""
    speed: Positive | None = None
    """How many times as fast as recorded to replay the trace; default: 1."""
    duration_s: Positive | None = None
    """Length of the first run's measured window; default: 30 s, or as long as the p99 and the error rate need."""
    soak_s: Annotated[float, Field(ge=_SHORTEST_SOAK_S)] | None = None
    """Length of a single long run, during which the server's memory, open files and latency are watched for a trend."""
    max_duration_s: Positive | None = None
    """The longest measured time of all runs together, while it is undecided; default: ten times the first run."""
    warmup_s: Annotated[float, Field(ge=0)] = 5
    repeat: AtLeastOne = 1
    """The least number of runs; all are judged together."""

    def replayed(self, spec: Spec) -> Path | None:
        """The file of the trace to replay; None for a load at a rate."""
        stated = spec.path(spec.load.replay) if spec.load.replay and self.rate is None and self.ramp is None else None
        return self.replay or stated

    def trace_of(self, spec: Spec) -> Trace | None:
        """The trace to replay; None for a load at a rate."""
        if self.rate is not None and self.replay is not None:
            raise InputError("`--replay`: not together with `--rate`: a trace has its own rate", hint="--speed 2")
        if (file := self.replayed(spec)) is None:
            if self.speed is not None:
                hint = "--replay trace.csv --speed 2"
                raise InputError("`--speed`: needs a trace, and neither `--replay` nor the spec names one", hint=hint)
            return None
        if self.arrivals == "constant":
            text = f"`--arrivals`: not together with a trace, whose own times are replayed: {file}"
            raise InputError(text, hint="--rate 50 --arrivals constant")
        return read_trace_file(file, self.speed or 1.0, tuple(CONTENT_TYPES))

    def schedule(self, spec: Spec, objective: Objective) -> Schedule:
        """The schedule of the first run; InputError if neither the options nor the spec state a rate."""
        if self.soak_s is not None:
            self._refuse_beside("soak", "duration_s", "max_duration_s", "ramp", "repeat")
        if self.ramp is not None:
            return self._rising(self.ramp)
        if (trace := self.trace_of(spec)) is not None:
            return self._replayed(trace, objective)
        rate = stated_rate(self.rate, spec, objective, f"marina loadtest {spec.file}")
        return self.schedule_of(rate, objective)

    def schedule_of(self, rate: float, objective: Objective) -> Schedule:
        """The schedule of the first run at a rate."""
        duration_s = self.soak_s or self.duration_s or max(_SHORTEST_S, math.ceil(_needed(objective) / rate))
        return self._schedule(rate, duration_s)

    def _schedule(
        self, rate: float, duration_s: float, *, ramp: Ramp | None = None, trace: Trace | None = None
    ) -> Schedule:
        return Schedule(
            arrivals=self.arrivals,
            rate=rate,
            warmup_s=self.warmup_s,
            duration_s=duration_s,
            seed=self.seed,
            ramp=ramp,
            trace=trace,
        )

    def _rising(self, rates: tuple[float, float]) -> Schedule:
        """The schedule of a ramp, by default long enough for steps that can be judged."""
        ramp = Ramp(begin=rates[0], end=rates[1])
        if ramp.end <= ramp.begin:
            raise InputError(f"`--ramp`: got `{ramp.begin:g}:{ramp.end:g}`, allowed: a rate that rises, `10:200`")
        self._refuse_beside("ramp", "rate", "replay", "speed", "max_duration_s", "repeat")
        needed = SPARE_SAMPLES * MOST_STEPS * STEP_REQUESTS
        duration_s = self.duration_s or max(_SHORTEST_S, math.ceil(needed / ramp.mean))
        return self._schedule(ramp.mean, duration_s, ramp=ramp)

    def _refuse_beside(self, name: str, *others: str) -> None:
        """InputError if an option that contradicts a single run is given."""
        for other in others:
            if getattr(self, other) != type(self).model_fields[other].default:
                shown = other.removesuffix("_s").replace("_", "-")
                raise InputError(f"`--{name}`: not together with `--{shown}`: it is a single run of a special kind")

    def _replayed(self, trace: Trace, objective: Objective) -> Schedule:
        """The schedule of a trace: the whole trace, repeated until there are enough requests."""
        rounds = math.ceil(_needed(objective) / len(trace.times))
        duration_s = self.soak_s or self.duration_s or rounds * trace.length_s
        return self._schedule(trace.count_until(duration_s) / duration_s, duration_s, trace=trace)

    def next_schedule(self, first: Schedule, objective: Objective, measured: Sequence[Measurement]) -> Schedule | None:
        """The schedule of the run after these; None if they are enough, or more time is not allowed.

        Each further run doubles the measured time, so that an undecided verdict is looked at only a few times."""
        number, so_far_s = len(measured), sum(run.asked_s for run in measured)
        if any(run.interrupted or run.server_end for run in measured):
            return None
        length_s = first.duration_s
        if number and (first.ramp or self.soak_s):
            return None
        if number >= self.repeat:
            left_s = (self.max_duration_s or _LONGER * first.duration_s) - so_far_s
            length_s = min(so_far_s, left_s)
            if first.trace:
                # A part of a trace would have another rate.
                length_s -= length_s % first.duration_s
            if length_s < _SHORTEST_SHARE * first.duration_s or not is_undecided(judge(measured, objective)):
                return None
        return first.model_copy(update={"duration_s": length_s, "seed": self.seed + number})


def _needed(objective: Objective) -> float:
    """The number of requests that a first run needs."""
    return SPARE_SAMPLES * max(samples_needed(), arrivals_needed(objective.error_rate))
