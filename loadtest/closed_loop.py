"""Counts plain Locust's requests exactly and judges them against the spec's objective; `locustfile` attaches it.

Each process counts its own requests. Workers send their counts to the master with Locust's own reports, and the master,
or the only process, judges at the end."""

import sys
import time
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import locust.stats
from locust.env import Environment
from locust.runners import MasterRunner, WorkerRunner

from marina.config.measured import Objective
from marina.loadtest.judging import BUSY_CPU, judge, stream_figures
from marina.loadtest.measuring import GeneratorHealth, Histogram, Measurement, Streams, bucket_ms, merge_streams
from marina.loadtest.reporting import stream_lines, verdict_lines
from marina.loadtest.sending import LIMITED, TIMEOUT, StreamCounts

CLOSED_LOOP_WARNING = (
    "closed loop: a user waits for its answer before it sends again, so a server that stalls gets fewer requests "
    "and these figures look better than they are; for a verdict: marina loadtest"
)
_KEY = "marina"
# The key in a request's context for the events of its answer.
EVENTS = "events"


class ClosedLoop:
    """Counts the requests of one test, and judges them."""

    def __init__(self, environment: Environment, objective: Objective) -> None:
        self._environment = environment
        self._objective = objective
        self._reset()

    def attach(self) -> None:
        """Registers for the same events as Locust's own statistics."""
        # Locust declares the result as whole milliseconds, but formats and merges any number.
        locust.stats.bucket_response_time = bucket_ms  # type: ignore[assignment]
        events: Any = self._environment.events
        events.test_start.add_listener(lambda **_: self._reset())
        events.test_stop.add_listener(lambda **_: self._end())
        events.spawning_complete.add_listener(lambda **_: self._end_warmup())
        events.request.add_listener(self._count_request)
        events.report_to_master.add_listener(self._report)
        events.worker_report.add_listener(self._merge)
        events.quitting.add_listener(lambda **_: self.conclude())

    def conclude(self) -> None:
        """Judges, prints the verdict, and sets Locust's exit code; a worker leaves this to its master."""
        if isinstance(self._environment.runner, WorkerRunner):
            return
        self._end()
        self._find_lost()
        measurement = self.measurement()
        verdict = judge(measurement, self._objective)
        self._environment.process_exit_code = verdict.exit_code
        lines = [verdict_lines(verdict, measurement), *stream_lines(stream_figures(measurement))]
        print(*lines, CLOSED_LOOP_WARNING, sep="\n", file=sys.stderr)

    def measurement(self) -> Measurement:
        """The test as a measurement: the offered rate is the answered one, since a closed loop has no schedule."""
        good = self._response.count - self._errors[TIMEOUT]
        # A rate limit's refusals are counted with the errors until here.
        limited, errors = self._errors[LIMITED], {name: self._errors[name] for name in sorted(self._errors)}
        errors.pop(LIMITED, None)
        count = good + limited + sum(errors.values())
        elapsed = max((self._ended or time.monotonic()) - self._begun, 1e-3)
        runner: Any = self._environment.runner
        busy = runner is not None and (runner.cpu_warning_emitted or runner.worker_cpu_warning_emitted)
        return Measurement(
            rate=round(count / elapsed, 1),
            asked_s=elapsed,
            ran_s=elapsed,
            planned=count,
            sent=count,
            dropped=0,
            warmup=self._warmup,
            in_time=good,
            limited=limited,
            errors=errors,
            response=self._response,
            service=self._response,
            lag=Histogram(),
            loop_lag=Histogram(),
            seconds=(),
            streams=self._streams(),
            generators=((GeneratorHealth(cpu=BUSY_CPU, loop_lag_ms=0),),) if busy else (),
            lost_processes=tuple(sorted(self._lost)),
        )

    def _reset(self) -> None:
        self._begun, self._ended = time.monotonic(), 0.0
        self._warmup = 0
        self._lost: set[str] = set()
        self._reset_counts()

    def _reset_counts(self) -> None:
        self._response = Histogram((self._objective.p99_ms,))
        self._errors: Counter[str] = Counter()
        self._streamed: StreamCounts | None = None
        self._of_workers: Streams | None = None

    def _end(self) -> None:
        self._ended = self._ended or time.monotonic()

    def _end_warmup(self) -> None:
        if self._environment.reset_stats:
            self._warmup = self.measurement().sent
            self._begun = time.monotonic()
            self._reset_counts()

    def _count_request(
        self,
        response_time: float,
        exception: BaseException | None,
        context: Mapping[str, Any] | None = None,
        **_: object,
    ) -> None:
        failure = None if exception is None else str(exception)
        # A timeout counts with the time after which it was given up, as in the open loop: it is the slowest of all.
        if failure in (None, TIMEOUT):
            self._response.add(response_time)
        if failure is not None:
            self._errors[failure] += 1
        if (answer_events := (context or {}).get(EVENTS)) is not None:
            self._streamed = self._streamed or StreamCounts(
                self._objective.p99_ms, self._objective.ttft_p99_ms, self._objective.itl_p99_ms
            )
            self._streamed.add(0.0, response_time / 1000, answer_events, failure)
            for before, now in pairwise(answer_events.times):
                self._streamed.add_gap(now - before)

    def _streams(self) -> Streams | None:
        return merge_streams([self._of_workers, self._streamed.frozen() if self._streamed else None])

    def _report(self, data: dict[str, Any], **_: object) -> None:
        data[_KEY] = {"response": self._response.to_data(), "errors": dict(self._errors)}
        if (streams := self._streams()) is not None:
            data[_KEY]["streams"] = streams.model_dump(mode="json")
        self._reset_counts()

    def _find_lost(self) -> None:
        """Remembers workers whose heartbeats are missing, since Locust forgets them after a minute."""
        if isinstance(self._environment.runner, MasterRunner):
            self._lost |= {worker.id for worker in self._environment.runner.clients.missing}

    def _merge(self, data: dict[str, Any], **_: object) -> None:
        self._find_lost()
        if _KEY in data:
            self._response.merge(Histogram.from_data(data[_KEY]["response"]))
            self._errors.update(data[_KEY]["errors"])
            if "streams" in data[_KEY]:
                self._of_workers = merge_streams([self._of_workers, Streams.model_validate(data[_KEY]["streams"])])
