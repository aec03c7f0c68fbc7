"""Counts the requests of one generator process; at the end the counts become a `Measurement`."""

import time
from collections import Counter
from itertools import pairwise

from marina.loadtest.measuring import (
    GeneratorHealth,
    Histogram,
    Measurement,
    PodShare,
    Second,
    Slice,
    Streams,
    merge_streams,
)
from marina.loadtest.sending.client import LIMITED, TIMEOUT
from marina.loadtest.sending.plan import LoadPlan
from marina.loadtest.sending.wire import EventReader


class _Counts:
    """The requests of one second, of one slice of the window, or of one pod."""

    def __init__(self, *limits_ms: float) -> None:
        self.due = self.good = self.limited = 0
        self.errors: Counter[str] = Counter()
        self.response = Histogram(limits_ms)

    def end(self, failure: str | None, response_ms: float) -> None:
        """Counts a request that ended, well or with the name of a failure; the time of a timeout counts, too."""
        self.limited += failure == LIMITED
        if failure not in (None, LIMITED):
            self.errors[failure] += 1
        if failure in (None, TIMEOUT):
            self.response.add(response_ms)

    def second(self) -> Second:
        return Second(
            due=self.due,
            answered=self.good,
            limited=self.limited,
            errors=dict(self.errors),
            response=self.response,
        )


class StreamCounts:
    """The counts of streamed answers; their window starts at `begin_s`."""

    def __init__(self, limit_ms: float, first_ms: float | None, gap_ms: float | None, begin_s: float = 0.0) -> None:
        self._limit_ms, self._first_ms, self._gap_ms = limit_ms, first_ms, gap_ms
        limits = [() if limit is None else (limit,) for limit in (first_ms, gap_ms, gap_ms)]
        self._first, self._gaps, self._pace = map(Histogram, limits)
        self._met = self._tokens = self._prompt = self._cached = 0
        self._begin_s = self._ended_s = begin_s

    def add_gap(self, gap_s: float) -> None:
        """Counts the time from one piece of text to the next."""
        self._gaps.add(gap_s * 1000)

    def add(self, due: float, ended: float, events: EventReader, failure: str | None) -> None:
        """Counts a streamed answer without its gaps, which may belong to another slice than the answer."""
        times = events.times
        self._ended_s = max(self._ended_s, ended)
        first_ms = ((times[0] if times else ended) - due) * 1000
        if times or failure == TIMEOUT:
            self._first.add(first_ms)
        tokens = events.used("completion_tokens") or len(times)
        self._tokens += tokens
        self._prompt += events.used("prompt_tokens")
        self._cached += events.used("prompt_tokens_details", "cached_tokens")
        if failure is not None:
            return
        pace_ms = (events.written_at - times[0]) * 1000 / (tokens - 1) if tokens > 1 else 0.0
        if tokens > 1:
            self._pace.add(pace_ms)
        limits = ((self._first_ms, first_ms), (self._gap_ms, pace_ms), (self._limit_ms, (ended - due) * 1000))
        self._met += all(limit is None or value <= limit for limit, value in limits)

    def frozen(self) -> Streams:
        return Streams(
            first=self._first,
            gaps=self._gaps,
            pace=self._pace,
            met=self._met,
            tokens=self._tokens,
            prompt_tokens=self._prompt,
            cached_tokens=self._cached,
            took_s=self._ended_s - self._begin_s,
        )


class Recorder:
    """Counts requests as they end, and the generator's own delays; times are seconds from the start of the run."""

    def __init__(self, plan: LoadPlan) -> None:
        self._plan = plan
        self._schedule = plan.schedule
        self._in_time_until = self._schedule.total_s + plan.limit_ms / 1000
        limits = (plan.limit_ms,)
        self._response, self._service = Histogram(limits), Histogram(limits)
        self._lag, self._loop_lag = Histogram(limits), Histogram(limits)
        self._errors: Counter[str] = Counter()
        self._seconds: list[_Counts] = []
        self._slices = [_Counts(plan.limit_ms) for _ in range(self._schedule.slices)]
        of_stream = (plan.limit_ms, plan.first_ms, plan.gap_ms, self._schedule.warmup_s)
        self._streams = [StreamCounts(*of_stream) for _ in self._slices] if plan.is_streamed else []
        self._pods = [_Counts(plan.limit_ms) for _ in plan.request.servers]
        self._recent = _Counts()
        self._health: list[GeneratorHealth] = []
        self._worst_loop_lag_ms = 0.0
        self._clocks = (time.perf_counter(), time.process_time())
        self.sent = self.dropped = self.warmup = self.in_time = self.limited = 0

    def count_due(self, due: float, *, dropped: bool) -> None:
        """Counts an arrival that is due; `dropped` if it cannot be sent."""
        self._second(due).due += 1
        if due >= self._schedule.warmup_s:
            self.dropped += dropped
            self.sent += not dropped
            self._slices[self._slice(due)].due += 1

    def count_ended(self, due: float, begun: float, ended: float, failure: str | None, server: int = 0) -> None:
        """Counts a request that ended, well or with the name of a failure; `server` is the index of the pod."""
        response = (ended - due) * 1000
        if failure is None:
            self._second(ended).good += 1
            self._recent.good += 1
        for counts in (self._second(due), self._recent):
            counts.end(failure, response)
        if due < self._schedule.warmup_s:
            self.warmup += 1
            return
        self._lag.add((begun - due) * 1000)
        counts = self._slices[self._slice(due)]
        counts.end(failure, response)
        if self._pods:
            self._pods[server].end(failure, response)
            self._pods[server].good += failure is None
        if failure in (None, TIMEOUT):
            self._response.add(response)
            self._service.add((ended - begun) * 1000)
        if failure == LIMITED:
            self.limited += 1
        elif failure is not None:
            self._errors[failure] += 1
        elif ended <= self._in_time_until:
            self.in_time += 1
            counts.good += 1

    def count_stream(self, due: float, ended: float, events: EventReader, failure: str | None) -> None:
        """Counts the events of a request that ended."""
        if due < self._schedule.warmup_s:
            return
        self._streams[self._slice(due)].add(due, ended, events, failure)
        # A stall hits all streams at the same moment, so each gap counts in the slice in which it ends.
        times = [*events.times, ended] if failure == TIMEOUT else events.times
        for before, now in pairwise(times):
            self._streams[self._slice(now)].add_gap(now - before)

    def count_loop_lag(self, lag_s: float, now: float) -> None:
        lag_ms = max(0.0, lag_s * 1000)
        self._worst_loop_lag_ms = max(self._worst_loop_lag_ms, lag_ms)
        if self._schedule.warmup_s <= now < self._schedule.total_s:
            self._loop_lag.add(lag_ms)

    def end_second(self, now: float) -> tuple[GeneratorHealth, Second]:
        """Ends a second: returns how the process was doing, and the requests that ended in it."""
        clocks = (time.perf_counter(), time.process_time())
        cpu = (clocks[1] - self._clocks[1]) / max(1e-9, clocks[0] - self._clocks[0])
        health = GeneratorHealth(cpu=cpu, loop_lag_ms=self._worst_loop_lag_ms)
        # A second that started in the warm-up says nothing about the window.
        if self._schedule.warmup_s + 1 <= now <= self._schedule.total_s + 0.5:
            self._health.append(health)
        recent, self._recent = self._recent.second(), _Counts()
        self._worst_loop_lag_ms, self._clocks = 0.0, clocks
        return health, recent

    def _second(self, moment: float) -> _Counts:
        while len(self._seconds) <= moment:
            self._seconds.append(_Counts())
        return self._seconds[int(moment)]

    def _slice(self, moment: float) -> int:
        """In which slice a moment is; the last one has all that end later."""
        share = (moment - self._schedule.warmup_s) / self._schedule.duration_s
        return min(len(self._slices) - 1, int(share * len(self._slices)))

    def measurement(self, ran_s: float) -> Measurement:
        streams = [counts.frozen() for counts in self._streams]
        slices = tuple(
            Slice(
                due=counts.due,
                in_time=counts.good,
                failed=counts.errors.total(),
                limited=counts.limited,
                response=counts.response,
                streams=streams[at] if streams else None,
            )
            for at, counts in enumerate(self._slices)
        )
        shares = tuple(
            PodShare(name=server.name, good=pod.good, failed=pod.errors.total(), response=pod.response)
            for server, pod in zip(self._plan.request.servers, self._pods, strict=True)
        )
        return Measurement(
            rate=self._schedule.rate,
            asked_s=self._schedule.duration_s,
            ran_s=ran_s,
            planned=self._schedule.planned,
            sent=self.sent,
            dropped=self.dropped,
            warmup=self.warmup,
            in_time=self.in_time,
            limited=self.limited,
            errors=dict(sorted(self._errors.items())),
            response=self._response,
            service=self._service,
            lag=self._lag,
            loop_lag=self._loop_lag,
            seconds=tuple(second.second() for second in self._seconds),
            generators=(tuple(self._health),),
            slices=slices,
            streams=merge_streams(streams),
            shares=shares,
        )
