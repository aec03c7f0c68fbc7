"""Memory of the workers against `serving.max_worker_memory_mb`: the one over it is renewed, one at a time.

TorchServe cannot do it: killing a worker fails the batch it holds, and scaling down takes the newest first. So the
worker does it itself at the one moment when nothing of it is lost, between two batches (`handlers/renewal.py`): it
replaces its own program and keeps its connection to TorchServe, which notices nothing but one slow batch.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from config.sections import Serving
from server.system import ProcessIdentity, resident_bytes
from server.watching.health import Health

_LOOK_EVERY_S = 0.5
# A new worker that is over the limit again is what its model needs; it is renewed only when it has grown this much.
_GROWTH = 1.2
# A batch is answered within `serving.response_timeout_s`, or TorchServe kills its worker; that takes a moment.
_GRACE_S = 5.0


@dataclass
class _Renewal:
    """The one that is under way."""

    worker: str
    process: ProcessIdentity
    asked: Path
    since: float
    taken_up: bool = False

    @property
    def busy(self) -> Path:
        return self.asked.with_suffix(".busy")


class Recycler:
    """Asks by a file `<pid>` in `directory`; the worker renames it to `<pid>.busy` while it renews itself, and removes
    it when it has loaded the model again. Both have their time; what takes longer is said and counted."""

    def __init__(
        self,
        serving: Serving,
        directory: Path,
        health: Health,
        *,
        request_inference: Callable[[], None],
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit_bytes = serving.max_worker_memory_mb * 1_000_000 if serving.max_worker_memory_mb else None
        self._batch_s, self._load_s = serving.response_timeout_s + _GRACE_S, float(serving.startup_timeout_s)
        self._directory, self._health = directory, health
        self._request_inference, self._say, self._clock = request_inference, say, clock
        self._renewal: _Renewal | None = None
        self._limits: dict[ProcessIdentity, float] = {}
        self._next_look = float("-inf")
        self.recycled = 0
        self.failed = 0

    def step(self) -> None:
        """Asks the worker that needs it, or sees what became of the one asked. Cheap; call it often."""
        now = self._clock()
        if self._limit_bytes is None or now < self._next_look:
            return
        self._next_look = now + _LOOK_EVERY_S
        if self._renewal is not None:
            self._renewal = self._follow(self._renewal, self._limit_bytes)
        elif self._health.ready:
            self._renewal = self._ask(self._limit_bytes)

    def _ask(self, limit_bytes: int) -> _Renewal | None:
        for seat in self._health.workers():
            process = seat.process
            if process and (resident := resident_bytes(process.pid)) > self._limits.get(process, limit_bytes):
                renewal = _Renewal(seat.name, process, self._directory / str(process.pid), self._clock())
                try:
                    renewal.asked.touch()
                except OSError as err:
                    # On a full disk, until there is room again.
                    self._limits[process] = resident * _GROWTH
                    self._fail(f"worker {seat.name} has {resident / 1e6:.0f} MB and cannot be renewed: {err.strerror}")
                    return None
                self._say(f"worker {seat.name} has {resident / 1e6:.0f} MB, renewing it after its batch")
                return renewal
        return None

    def _follow(self, renewal: _Renewal, limit_bytes: int) -> _Renewal | None:
        """What is still under way."""
        process, busy = renewal.process, renewal.busy.exists()
        # The only worker answers nobody until it is new; with others the pod serves on.
        only = self._health.declared == 1 and busy and process.alive
        self._health.set_unready_reason("the only worker is being renewed" if only else None)
        if not process.alive:
            renewal.asked.unlink(missing_ok=True)
            renewal.busy.unlink(missing_ok=True)
            return None
        if busy:
            return self._loading(renewal)
        if renewal.asked.exists():
            return self._waiting(renewal)
        resident = resident_bytes(process.pid)
        self.recycled += 1
        self._say(f"worker {renewal.worker} is new, {resident / 1e6:.0f} MB")
        self._limits[process] = max(limit_bytes, resident * _GROWTH)
        return None

    def _waiting(self, renewal: _Renewal) -> _Renewal | None:
        if (waited_s := self._clock() - renewal.since) < self._batch_s:
            # It looks between two batches; an idle one has to be given one.
            self._request_inference()
            return renewal
        try:
            renewal.asked.unlink()
        except FileNotFoundError:
            # At the last moment it did take it up.
            return renewal
        self._limits[renewal.process] = float("inf")
        self._fail(
            f"worker {renewal.worker} did not renew itself within {waited_s:.0f} s and is left as it is: a "
            "handler of your own must call `handlers.renewal.arm` in `initialize`"
        )
        return None

    def _loading(self, renewal: _Renewal) -> _Renewal | None:
        if not renewal.taken_up:
            renewal.taken_up, renewal.since = True, self._clock()
        if (waited_s := self._clock() - renewal.since) >= self._load_s:
            renewal.since = self._clock()
            self._fail(
                f"worker {renewal.worker} has not loaded the model again after {waited_s:.0f} s, "
                "`serving.startup_timeout_s`; it is ended and TorchServe starts another"
            )
            with suppress(ProcessLookupError):
                os.kill(renewal.process.pid, signal.SIGKILL)
        return renewal

    def _fail(self, text: str) -> None:
        self.failed += 1
        self._say(f"warning: {text}")
