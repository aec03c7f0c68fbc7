"""Whether the pod may be sent requests: every declared worker is READY and alive, and the model has answered since the
last of them started. Being busy is not a reason; a TorchServe that is too busy to describe itself keeps its last word.

Describing is slow (on a GPU it runs nvidia-smi), so a death is noticed from /proc, at every look.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from server.java import ModelStatus, WorkerStatus
from server.system import ProcessIdentity, identify, is_stopped

# TorchServe answers describe in milliseconds, under overload in hundreds of them; after this it hangs.
STALE_S = 30.0
_STOPPED = "stopped by SIGSTOP, until it gets SIGCONT"

Generation = frozenset[tuple[str, ProcessIdentity | None]]


@dataclass
class WorkerHealth:
    """One of TorchServe's workers through all its restarts: its name stays, its process changes."""

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
    """Told what is seen (`observe`, `look`, `prove`), asked what follows from it. Safe to use from any thread."""

    def __init__(self, declared: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.declared = declared
        self.queued = 0
        self.java_pid = 0
        """TorchServe's own process, once there is one."""
        self._clock = clock
        self._lock = threading.RLock()
        self._seats: dict[str, WorkerHealth] = {}
        self._described_at: float | None = None
        self._proven: Generation | None = None
        self._unready_reason: str | None = None

    def observe(self, description: ModelStatus) -> None:
        """Takes in what TorchServe says of its workers."""
        with self._lock:
            self._described_at = self._clock()
            self.queued = description.queued
            for worker in description.workers:
                self._place(worker)

    def notice_deaths(self) -> bool:
        """Notices deaths; true when there was one since the last look."""
        with self._lock:
            dead = [seat for seat in self._seats.values() if seat.process and not seat.process.alive]
            for seat in dead:
                self._fail(seat)
            for seat in self._seats.values():
                seat.stopped = seat.alive and is_stopped(seat.pid)
            return bool(dead)

    def prove(self, generation: Generation) -> None:
        """An inference that began after `generation` was complete has succeeded."""
        with self._lock:
            if generation == self.generation:
                self._proven = generation

    def set_unready_reason(self, reason: str | None) -> None:
        """Not ready for a reason that no worker's state shows; None takes it back."""
        with self._lock:
            self._unready_reason = reason

    @property
    def generation(self) -> Generation | None:
        """Which processes serve, when all do; changes with every restart."""
        with self._lock:
            if sum(seat.serving for seat in self._seats.values()) < self.declared:
                return None
            return frozenset((seat.name, seat.process) for seat in self._seats.values())

    @property
    def processes(self) -> list[ProcessIdentity]:
        """Of the workers that are alive, as of the last look."""
        with self._lock:
            return [seat.process for seat in self._seats.values() if seat.process]

    @property
    def unproven(self) -> Generation | None:
        """The generation that has yet to answer; None when there is nothing to prove."""
        with self._lock:
            return None if self.generation == self._proven else self.generation

    @property
    def ready(self) -> bool:
        return not self.missing()

    @property
    def java_is_stopped(self) -> bool:
        """Whether somebody has stopped TorchServe's process, so that it answers nothing until it is told to go on."""
        return self.java_pid > 0 and is_stopped(self.java_pid)

    @property
    def was_ready(self) -> bool:
        """Whether requests may have been sent: an inference has succeeded, be it of workers that are gone since."""
        with self._lock:
            return self._proven is not None

    def missing(self) -> list[str]:
        """What is missing for readiness, in words; looks for deaths first."""
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
            lacking = [f"worker {seat.name}: {self._state(seat)}" for seat in self.workers() if not seat.serving]
            if (unseen := self.declared - len(self._seats)) > 0:
                lacking.append(f"{unseen} of {self.declared} workers not started yet")
            if not lacking and self.unproven is not None:
                lacking.append("no inference has succeeded since the last worker started")
            return lacking

    def workers(self) -> list[WorkerHealth]:
        """Copies of what is known of each worker, by name."""
        with self._lock:
            return [replace(seat) for _, seat in sorted(self._seats.items())]

    def failing_for_s(self) -> float:
        """How long the worst worker has been failing: from its first death until it is READY again."""
        with self._lock:
            since = [seat.failing_since for seat in self._seats.values() if seat.failing_since is not None]
            return self._clock() - min(since) if since else 0.0

    def _place(self, worker: WorkerStatus) -> None:
        seat = self._seats.setdefault(worker.name, WorkerHealth(worker.name))
        if worker.pid > 0:
            replaced, process = seat.pid not in (0, worker.pid), identify(worker.pid)
            seat.restarts += replaced
            # A worker that fails to load is dead before anybody sees it alive.
            if replaced or process is None:
                self._fail(seat)
            seat.pid, seat.process = worker.pid, process
        seat.ready = worker.ready
        if seat.serving:
            seat.failing_since = None

    def _fail(self, seat: WorkerHealth) -> None:
        seat.process = None
        if seat.failing_since is None:
            seat.failing_since = self._clock()

    def _state(self, seat: WorkerHealth) -> str:
        if seat.failing_since is not None:
            return f"died {self._clock() - seat.failing_since:.0f} s ago, {seat.restarts} restarts"
        return _STOPPED if seat.stopped else "loading"
