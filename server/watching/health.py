"""Whether the pod can take requests: every declared worker is READY and alive, and the model has answered an inference
since the last of them started. Load does not matter: if TorchServe is too busy to describe itself, its last description
counts.

Describing is slow (on a GPU it runs nvidia-smi), so deaths are noticed from /proc, at every poll."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from marina.server.java.frontend import ModelStatus, WorkerStatus
from marina.server.system.processes import ProcessIdentity, identify, is_stopped

# TorchServe describes a model in milliseconds, or in hundreds of them under overload; after this long it hangs.
STALE_S = 30.0
_STOPPED = "stopped by SIGSTOP, until it gets SIGCONT"

Generation = frozenset[tuple[str, ProcessIdentity | None]]
"""The names of all workers with their current processes."""


@dataclass
class WorkerHealth:
    """One of TorchServe's workers across its restarts: its name stays, its process changes."""

    name: str
    process: ProcessIdentity | None = None
    ready: bool = False
    stopped: bool = False
    pid: int = 0
    restarts: int = 0
    failing_since: float | None = None

    @property
    def alive(self) -> bool:
        return self.process is not None

    @property
    def serving(self) -> bool:
        return self.ready and self.alive and not self.stopped


class Health:
    """Derives readiness from what `observe`, `notice_deaths` and `prove` report. Thread-safe."""

    def __init__(self, declared: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.declared = declared
        self.queued = 0
        self.java_pid = 0
        """The pid of TorchServe's Java; 0 before it is started."""
        self._clock = clock
        self._lock = threading.RLock()
        self._workers: dict[str, WorkerHealth] = {}
        self._described_at: float | None = None
        self._proven: Generation | None = None
        self._unready_reason: str | None = None

    def observe(self, status: ModelStatus) -> None:
        """Records TorchServe's description of its workers."""
        with self._lock:
            self._described_at = self._clock()
            self.queued = status.queued
            for reported in status.workers:
                self._update(reported)

    def notice_deaths(self) -> bool:
        """Checks in /proc which workers have died or were stopped; true if one has died since the last call."""
        with self._lock:
            dead = [worker for worker in self._workers.values() if worker.process and not worker.process.alive]
            for worker in dead:
                self._fail(worker)
            for worker in self._workers.values():
                worker.stopped = worker.alive and is_stopped(worker.pid)
            return bool(dead)

    def prove(self, generation: Generation) -> None:
        """Records that an inference has succeeded which began after `generation` was complete."""
        with self._lock:
            if generation == self.generation:
                self._proven = generation

    def set_unready_reason(self, reason: str | None) -> None:
        """Reports not ready, for a reason that is not in the state of the workers; None withdraws it."""
        with self._lock:
            self._unready_reason = reason

    @property
    def generation(self) -> Generation | None:
        """The processes that serve, which change with every restart; None unless all declared workers serve."""
        with self._lock:
            if sum(worker.serving for worker in self._workers.values()) < self.declared:
                return None
            return frozenset((worker.name, worker.process) for worker in self._workers.values())

    @property
    def processes(self) -> list[ProcessIdentity]:
        """The processes of the workers that were alive at the last check."""
        with self._lock:
            return [worker.process for worker in self._workers.values() if worker.process]

    @property
    def unproven(self) -> Generation | None:
        """The current generation if it has not answered an inference yet, else None."""
        with self._lock:
            return None if self.generation == self._proven else self.generation

    @property
    def ready(self) -> bool:
        return not self.missing()

    @property
    def java_is_stopped(self) -> bool:
        """True if TorchServe's process was stopped by SIGSTOP, so that it answers nothing until it gets SIGCONT."""
        return self.java_pid > 0 and is_stopped(self.java_pid)

    @property
    def was_ready(self) -> bool:
        """True if requests may have been sent, because some generation has answered an inference."""
        with self._lock:
            return self._proven is not None

    def missing(self) -> list[str]:
        """The reasons for not being ready, as sentences; none if the server is ready. Checks for deaths first."""
        with self._lock:
            self.notice_deaths()
            if self._unready_reason:
                return [self._unready_reason]
            if self.java_is_stopped:
                return [f"TorchServe: {_STOPPED}"]
            if self._described_at is None:
                return ["TorchServe does not answer yet"]
            if (silent_s := self._clock() - self._described_at) > STALE_S:
                return [f"TorchServe has not described its workers for {silent_s:.0f} s"]
            lacking = [
                f"worker {worker.name}: {self._state(worker)}" for worker in self.workers() if not worker.serving
            ]
            if (unseen := self.declared - len(self._workers)) > 0:
                lacking.append(f"{unseen} of {self.declared} workers not started yet")
            if not lacking and self.unproven is not None:
                lacking.append("no inference has succeeded since the last worker started")
            return lacking

    def workers(self) -> list[WorkerHealth]:
        """Copies of the workers' state, sorted by name."""
        with self._lock:
            return [replace(worker) for _, worker in sorted(self._workers.items())]

    def failing_for_s(self) -> float:
        """How long the worst worker has been failing: from its first death until it is READY again."""
        with self._lock:
            since = [worker.failing_since for worker in self._workers.values() if worker.failing_since is not None]
            return self._clock() - min(since) if since else 0.0

    def _update(self, reported: WorkerStatus) -> None:
        worker = self._workers.setdefault(reported.name, WorkerHealth(reported.name))
        if reported.pid > 0:
            replaced, process = worker.pid not in (0, reported.pid), identify(reported.pid)
            worker.restarts += replaced
            # A worker that fails to load may be dead before we see it alive.
            if replaced or process is None:
                self._fail(worker)
            worker.pid, worker.process = reported.pid, process
        worker.ready = reported.ready
        if worker.serving:
            worker.failing_since = None

    def _fail(self, worker: WorkerHealth) -> None:
        worker.process = None
        if worker.failing_since is None:
            worker.failing_since = self._clock()

    def _state(self, worker: WorkerHealth) -> str:
        if worker.failing_since is not None:
            return f"died {self._clock() - worker.failing_since:.0f} s ago, {worker.restarts} restarts"
        return _STOPPED if worker.stopped else "loading"
