"""The options of `marina loadtest`, and the schedules that follow from them."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from marina.config.errors import InputError
from marina.config.measured import Arrivals, Objective
from marina.config.record import Options
from marina.config.request_headers import CONTENT_TYPES
from marina.config.sections import Positive
from marina.config.spec import Spec
from marina.loadtest.judging import SPARE_SAMPLES, arrivals_needed, is_undecided, judge, samples_needed
from marina.loadtest.measuring import Measurement
from marina.loadtest.scheduling import Schedule, Trace, read_trace_file

_SHORTEST_S = 30
_LOWEST_RPS = 0.0001
# While the verdict is undecided, more runs follow, until all together are this many times as long as the first.
_LONGER = 10
# A run shorter than this share of the first one would not tell anything more.
_SHORTEST_SHARE = 0.2
# The growth of the latency needs 48 seconds with answers after the first third.
_SHORTEST_SOAK_S = 75
AtLeastOne = Annotated[int, Field(ge=1)]


def stated_rate(given: float | None, spec: Spec, objective: Objective, command: str) -> float:
    """The given rate, or else that of the objective, requests/s; InputError if there is neither."""
    rate = given or objective.throughput_rps
    if rate is None:
        text = f"{spec.file}: `slo.throughput_rps`: missing, and no `--rate` was given"
        raise InputError(text, hint=f"{command} --rate 50")
    if rate < _LOWEST_RPS:
        raise InputError(f"got {rate:g} requests/s, allowed: {_LOWEST_RPS:g} or more", hint=f"{command} --rate 50")
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
    speed: Annotated[float, Field(ge=0.001, le=1000)] | None = None
    """How many times as fast as recorded to replay the trace; default: 1."""
    duration_s: Positive | None = None
    """Length of the first run's measured window; default: 30 s, or as long as the p99 and the error rate need."""
    soak_s: Annotated[float, Field(ge=_SHORTEST_SOAK_S)] | None = None
    """Length of a single long run, during which the server's memory, open files and latency must not grow."""
    max_duration_s: Positive | None = None
    """The longest measured time of all runs together, while it is undecided; default: ten times the first run."""
    warmup_s: Annotated[float, Field(ge=0)] = 5
    repeat: AtLeastOne = 1
    """The least number of runs; all are judged together."""

    def replayed(self, spec: Spec) -> Path | None:
        """The file of the trace to replay; None for a load at a rate."""
        return self.replay or (spec.path(spec.load.replay) if spec.load.replay and self.rate is None else None)

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
        for other in ("duration_s", "max_duration_s", "repeat") if self.soak_s is not None else ():
            if getattr(self, other) != type(self).model_fields[other].default:
                shown = other.removesuffix("_s").replace("_", "-")
                raise InputError(f"`--soak`: not together with `--{shown}`: it is a single run of a special kind")
        trace = self.trace_of(spec)
        rate = 0.0 if trace else stated_rate(self.rate, spec, objective, f"marina loadtest {spec.file}")
        return self.schedule_of(rate, objective, trace)

    def schedule_of(self, rate: float, objective: Objective, trace: Trace | None = None) -> Schedule:
        """The schedule of the first run at a rate, or of a trace, which has its own rate."""
        # As many requests as a first run needs; a trace is repeated as a whole.
        needed = SPARE_SAMPLES * max(samples_needed(), arrivals_needed(objective.error_rate))
        given_s = self.soak_s or self.duration_s
        if trace:
            duration_s = given_s or math.ceil(needed / len(trace.times)) * trace.length_s
            rate = trace.count_until(duration_s) / duration_s
        else:
            duration_s = given_s or max(_SHORTEST_S, math.ceil(needed / rate))
        return Schedule(
            arrivals=self.arrivals,
            rate=rate,
            warmup_s=self.warmup_s,
            duration_s=duration_s,
            seed=self.seed,
            trace=trace,
        )

    def next_schedule(self, first: Schedule, objective: Objective, measured: Sequence[Measurement]) -> Schedule | None:
        """The schedule of the run after these; None if they are enough, or more time is not allowed.

        Each further run doubles the measured time, so that an undecided verdict is looked at only a few times."""
        number, so_far_s = len(measured), sum(run.asked_s for run in measured)
        if any(run.interrupted or run.server_end for run in measured) or (number and self.soak_s):
            return None
        length_s = first.duration_s
        if number >= self.repeat:
            left_s = (self.max_duration_s or _LONGER * first.duration_s) - so_far_s
            length_s = min(so_far_s, left_s)
            if first.trace:
                # A part of a trace would have another rate.
                length_s -= length_s % first.duration_s
            if length_s < _SHORTEST_SHARE * first.duration_s or not is_undecided(judge(measured, objective)):
                return None
        return first.model_copy(update={"duration_s": length_s, "seed": self.seed + number})
