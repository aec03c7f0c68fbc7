"""The leader of a load that several processes send: Locust's master, which hands out the plans and the moment to start.

It first compares the workers' clocks with its own, so that all start together on whatever machines they run. If a
worker is lost, as Locust's heartbeats show, the run ends; the measurements of the others are kept, and the lost one is
named."""

import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gevent
from gevent.event import Event
from locust.env import Environment
from locust.runners import STATE_MISSING, MasterRunner

from marina.config.errors import MarinaError
from marina.loadtest.measuring import GeneratorHealth, Measurement, Second, merge_measurements, merge_seconds
from marina.loadtest.sending import processes
from marina.loadtest.sending.generator import OnSecond
from marina.loadtest.sending.open_loop import user_class
from marina.loadtest.sending.plan import LoadPlan

_READY_WITHIN_S = 60.0
# How long the slowest worker needs to receive the moment.
_HEAD_START_S = 0.2
_CLOCK_ROUNDS = 10
_POLL_S = 0.02


class Stopped(Exception):
    """Raised if the load is stopped before it started."""


@dataclass
class _WorkerState:
    """What the leader knows about one worker."""

    client: str
    """Its name in Locust: the host's name and a random number."""
    part: int
    waiting: bool = False
    clock_answers: int = 0
    ahead_s: float = 0.0
    """Its clock minus ours."""
    unsure_s: float = float("inf")
    """How wrong that may be: half of the quickest round trip."""
    seconds: list[tuple[GeneratorHealth, Second]] = field(default_factory=list)
    measured: str | None = None
    """The JSON of its measurement, which takes long to read after hours: only when all have ended."""
    error: str | None = None

    @property
    def name(self) -> str:
        """The worker's name in a verdict."""
        return f"{self.part + 1} on {self.client.rpartition('_')[0]}"


class Leader:
    def __init__(self, plan: LoadPlan, host: str, port: int, on_second: OnSecond) -> None:
        self._plan = plan
        self._on_second = on_second
        self._seconds = 0
        self._workers: dict[int, _WorkerState] = {}
        self._processes: Mapping[int, subprocess.Popen[bytes]] = {}
        self._stopped = Event()
        # The users run in the workers; the master only counts them.
        environment = Environment(user_classes=[user_class(lambda: None)], host=plan.request.url)
        self._runner: MasterRunner = environment.create_master_runner(host, port)
        answers: dict[str, Callable[[_WorkerState, dict[str, Any]], None]] = {
            processes.WAITING: lambda worker, _: setattr(worker, "waiting", True),
            processes.CLOCK: _compare_clocks,
            processes.SECOND: self._collect_second,
            processes.MEASURED: lambda worker, data: setattr(worker, "measured", data["measurement"]),
            processes.FAILED: lambda worker, data: setattr(worker, "error", data["error"]),
        }
        processes.listen(self._runner, processes.HERE, self._add_worker)
        for name, answer in answers.items():
            processes.listen(self._runner, name, self._from_worker(answer))

    @property
    def port(self) -> int:
        return int(self._runner.server.port)

    def stop(self) -> None:
        self._stopped.set()

    def run(self, local: Mapping[int, subprocess.Popen[bytes]]) -> Measurement:
        """Leads the workers that are processes of this machine, by part, and those that connect from other hosts.

        MarinaError if one does not connect or cannot start; Stopped if the load is stopped before all have started."""
        self._processes = local
        try:
            self._gather()
            self._compare_all_clocks()
            return self._measure()
        finally:
            self._runner.quit()

    def _gather(self) -> None:
        parts = range(self._plan.parts)
        self._await(
            lambda: [part for part in parts if part not in self._workers], processes.GATHER_TIMEOUT_S, "connect"
        )
        for part, worker in self._workers.items():
            plan = self._plan.model_copy(update={"part": part})
            self._send([worker], processes.PLAN, {"plan": plan.model_dump_json()})
        spawning = gevent.spawn(self._runner.start, self._plan.parts, self._plan.parts)
        self._await(lambda: [part for part in parts if not self._workers[part].waiting], _READY_WITHIN_S, "get ready")
        # Locust's last messages of the start must not delay the first requests.
        spawning.join()

    def _compare_all_clocks(self) -> None:
        workers = list(self._workers.values())
        for number in range(1, _CLOCK_ROUNDS + 1):
            for worker in workers:
                self._send([worker], processes.CLOCK, {"asked": time.perf_counter()})
            self._await(
                lambda number=number: [worker.part for worker in workers if worker.clock_answers < number],  # type: ignore[misc]
                _READY_WITHIN_S,
                "report their clocks",
            )

    def _measure(self) -> Measurement:
        workers = list(self._workers.values())
        start = time.perf_counter() + _HEAD_START_S
        for worker in workers:
            self._send([worker], processes.START, {"at": start + worker.ahead_s})
        stop_sent = False
        while pending := [worker for worker in workers if worker.measured is None]:
            self._check_errors()
            lost = [worker for worker in pending if self._is_lost(worker)]
            if len(lost) == len(pending):
                break
            if (lost or self._stopped.is_set()) and not stop_sent:
                self._send(pending, processes.STOP, {})
                stop_sent = True
            gevent.sleep(_POLL_S)
        texts = [worker.measured for worker in workers if worker.measured is not None]
        if not texts:
            raise MarinaError(f"every process of the load was lost: {', '.join(worker.name for worker in workers)}")
        lost_names = tuple(worker.name for worker in workers if worker.measured is None)
        clocks_ms = 1000 * max(worker.unsure_s for worker in workers)
        measured = merge_measurements([Measurement.model_validate_json(text) for text in texts])
        return measured.model_copy(update={"lost_processes": lost_names, "clocks_ms": clocks_ms})

    def _await(self, missing: Callable[[], list[int]], within_s: float, verb: str) -> None:
        """Waits until no part is missing; MarinaError if one ended, failed, or takes too long."""
        until = time.monotonic() + within_s
        while parts := missing():
            self._check_errors()
            if self._stopped.is_set():
                raise Stopped
            for part, process in self._processes.items():
                if process.poll() is not None:
                    raise MarinaError(f"process {part + 1} of the load ended with code {process.returncode}")
            if time.monotonic() > until:
                numbers = ", ".join(str(part + 1) for part in parts)
                raise MarinaError(f"processes {numbers} of the load did not {verb} within {within_s:g} s")
            gevent.sleep(_POLL_S)

    def _is_lost(self, worker: _WorkerState) -> bool:
        client, process = self._runner.clients.get(worker.client), self._processes.get(worker.part)
        return client is None or client.state == STATE_MISSING or (process is not None and process.poll() is not None)

    def _check_errors(self) -> None:
        for worker in self._workers.values():
            if worker.error is not None:
                raise MarinaError(f"process {worker.name} of the load failed: {worker.error}")

    def _add_worker(self, data: dict[str, Any]) -> None:
        self._workers[data["part"]] = _WorkerState(data["client"], data["part"])

    def _from_worker(self, answer: Callable[[_WorkerState, dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
        return lambda data: answer(self._workers[data["part"]], data)

    def _collect_second(self, worker: _WorkerState, data: dict[str, Any]) -> None:
        worker.seconds.append((GeneratorHealth.model_validate(data["beat"]), Second.model_validate(data["second"])))
        if min(len(known.seconds) for known in self._workers.values()) > self._seconds:
            beats, seconds = zip(*(known.seconds[self._seconds] for known in self._workers.values()), strict=True)
            self._seconds += 1
            self._on_second(self._seconds, merge_seconds(seconds), beats)

    def _send(self, workers: Iterable[_WorkerState], name: str, data: dict[str, Any]) -> None:
        for worker in workers:
            self._runner.send_message(name, data, worker.client)


def _compare_clocks(worker: _WorkerState, data: dict[str, Any]) -> None:
    """The quickest of several exchanges is the most exact: the worker read its clock at some time during it."""
    now = time.perf_counter()
    unsure_s = (now - data["asked"]) / 2
    if unsure_s < worker.unsure_s:
        worker.ahead_s, worker.unsure_s = data["clock"] - (data["asked"] + now) / 2, unsure_s
    worker.clock_answers += 1
