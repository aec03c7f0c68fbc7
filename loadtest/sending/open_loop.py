"""The open loop: a Locust user that sends each request of a schedule when it is due, whatever became of the others.

Each request runs in its own greenlet, so a slow server delays no other request. Locust's request event is fired for
each request, so its statistics, listeners and printers are right; its rounded times are replaced by 1 % buckets."""

import gc
import resource
import time
from collections.abc import Callable
from typing import Any

import gevent
import locust.stats
from gevent.event import Event
from gevent.pool import Group
from locust import User, task
from locust.env import Environment
from locust.exception import StopUser

from marina.loadtest.measuring import GeneratorHealth, Measurement, Second, bucket_ms
from marina.loadtest.sending.client import Checker, Client, send_and_check
from marina.loadtest.sending.plan import LoadPlan
from marina.loadtest.sending.recorder import Recorder

OnHealth = Callable[[GeneratorHealth, Second], None]
_TICK_S = 0.01
# Each open request needs a port of this machine, of which there are 28,000.
_MOST_OPEN = 20_000
_OTHER_FILES = 100


class RequestFailed(Exception):
    """The exception in Locust's request event of a request without a good answer."""


def user_class(follow: Callable[[], None]) -> type[User]:
    """Locust's user class, of which each process has one user: it follows a schedule, then stops."""

    class OpenLoopUser(User):
        @task
        def follow_schedule(self) -> None:
            follow()
            raise StopUser

    return OpenLoopUser


class OpenLoop:
    """Sends one process's share of a run, and reports its requests to a Locust environment."""

    def __init__(self, plan: LoadPlan, environment: Environment, on_health: OnHealth) -> None:
        self._plan = plan
        self._times = plan.schedule.times(plan.part, plan.parts)
        self._clients = [Client(request) for request in plan.request.per_server]
        self._checkers = [Checker(body.expected) for body in plan.request.all_bodies]
        # Bodies are chosen for the arrivals of all processes, so that together they send what a single process would.
        weights = [body.weight for body in plan.request.all_bodies]
        self._which = plan.schedule.choose_bodies(weights)[plan.part :: plan.parts]
        self._recorder = Recorder(plan)
        self._on_health = on_health
        self._stopped = Event()
        self._open = Group()
        self._most_open = connection_limit() - _OTHER_FILES
        self._start = self._ran_s = 0.0
        self._environment = environment
        # What exists now lives as long as the run, so the garbage collector need not visit it while requests are timed.
        gc.collect()
        gc.freeze()

    def run(self, start: float) -> Measurement:
        """Sends the schedule from `start`, a time of `time.perf_counter`, and waits for the last answer."""
        # Locust declares the result as whole milliseconds, but formats and merges any number.
        locust.stats.bucket_response_time = bucket_ms  # type: ignore[assignment]
        self._start = start
        self._wait_until(start)
        late_ms = max(0.0, self._now() * 1000)
        health = [gevent.spawn(self._watch_loop), gevent.spawn(self._report_health)]
        try:
            self._follow_schedule()
        finally:
            gevent.killall(health)
            for client in self._clients:
                client.close()
        return self._recorder.measurement(self._ran_s).model_copy(update={"starts_ms": (late_ms,)})

    def stop(self) -> None:
        """Stops sending, and gives up the open requests."""
        self._stopped.set()

    def _follow_schedule(self) -> None:
        in_window = False
        # Servers take turns over the arrivals of all processes, so that each gets equally many requests.
        turns = range(self._plan.part, self._plan.part + self._plan.parts * len(self._times), self._plan.parts)
        for turn, due, which in zip(turns, self._times, self._which, strict=True):
            if not self._wait_until(self._start + due):
                break
            if not in_window and due >= self._plan.schedule.warmup_s:
                in_window = True
                self._environment.stats.reset_all()
            dropped = len(self._open) >= self._most_open
            self._recorder.count_due(due, dropped=dropped)
            if not dropped:
                self._open.start(gevent.Greenlet(self._send, due, which, turn % len(self._clients)))
        else:
            self._wait_until(self._start + self._plan.schedule.total_s)
        self._ran_s = max(0.0, min(self._now() - self._plan.schedule.warmup_s, self._plan.schedule.duration_s))
        self._wait_for_answers()

    def _wait_for_answers(self) -> None:
        until = time.perf_counter() + self._plan.timeout_s + 1
        while len(self._open) and not self._stopped.is_set() and time.perf_counter() < until:
            self._open.join(timeout=0.1)
        self._open.kill()

    def _wait_until(self, moment: float) -> bool:
        """Waits for a moment; returns False as soon as the run is stopped."""
        while (left := moment - time.perf_counter()) > 0:
            if self._stopped.wait(left):
                return False
        return not self._stopped.is_set()

    def _send(self, due: float, which: int, server: int) -> None:
        begun = self._now()
        failure, size, events = send_and_check(
            self._clients[server], which, self._checkers[which], self._plan.timeout_s, self._now
        )
        ended = self._now()
        self._recorder.count_ended(due, begun, ended, failure, server)
        if events is not None:
            self._recorder.count_stream(due, ended, events, failure)
        request: Any = self._environment.events.request
        request.fire(
            request_type="POST",
            name=self._plan.request.path,
            response_time=(ended - due) * 1000,
            response_length=size,
            exception=RequestFailed(failure) if failure else None,
            context={},
        )

    def _now(self) -> float:
        return time.perf_counter() - self._start

    def _watch_loop(self) -> None:
        while True:
            asked = time.perf_counter()
            gevent.sleep(_TICK_S)
            self._recorder.count_loop_lag(time.perf_counter() - asked - _TICK_S, self._now())

    def _report_health(self) -> None:
        second = 0
        while True:
            second += 1
            gevent.sleep(max(0.0, second - self._now()))
            self._on_health(*self._recorder.end_second(self._now()))


def connection_limit() -> int:
    """How many connections this process may have, after raising its limit of open files as far as allowed."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return _MOST_OPEN if hard == resource.RLIM_INFINITY else min(hard, _MOST_OPEN)
