"""Renews workers whose memory exceeds `serving.max_worker_memory_mb`, one at a time.

TorchServe cannot do it: killing a worker fails the batch it holds, and scaling down removes the newest worker first. So
the worker renews itself at the one moment when nothing is lost, between two batches (`handlers/renewal.py`): it
replaces its own program and keeps its connection to TorchServe, which notices only one slow batch."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from marina.config.sections import Serving
from marina.server.system.processes import ProcessIdentity, resident_bytes
from marina.server.watching.health import Health

_CHECK_EVERY_S = 0.5
# If a renewed worker is over the limit again, its model needs that much. It is renewed again only after it has grown by
# this factor.
_GROWTH = 1.2
# If a batch is not answered within `serving.response_timeout_s`, TorchServe kills the worker, and that takes a moment.
_GRACE_S = 5.0


@dataclass
class _Renewal:
    worker: str
    process: ProcessIdentity
    request_file: Path
    since: float
    taken_up: bool = False

    @property
    def busy_file(self) -> Path:
        return self.request_file.with_suffix(".busy")


class Renewals:
    """Asks a worker to renew itself by creating the file `<pid>` in `directory`. The worker renames it to `<pid>.busy`
    when it begins, and removes it once it has loaded the model again. If either step takes too long, the renewal is
    logged and counted as failed."""

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
        self._next_check = float("-inf")
        self.renewed = 0
        self.failed = 0

    def step(self) -> None:
        """Starts a renewal if a worker needs one, or follows the renewal in progress. Cheap; call it often."""
        now = self._clock()
        if self._limit_bytes is None or now < self._next_check:
            return
        self._next_check = now + _CHECK_EVERY_S
        if self._renewal is not None:
            self._renewal = self._follow(self._renewal, self._limit_bytes)
        elif self._health.ready:
            self._renewal = self._ask(self._limit_bytes)

    def _ask(self, limit_bytes: int) -> _Renewal | None:
        for worker in self._health.workers():
            process = worker.process
            if process is None or (resident := resident_bytes(process.pid)) <= self._limits.get(process, limit_bytes):
                continue
            renewal = _Renewal(worker.name, process, self._directory / str(process.pid), self._clock())
            size = f"worker {worker.name} has {resident / 1e6:.0f} MB"
            try:
                renewal.request_file.touch()
            except OSError as err:
                # The disk is full. Try again when the worker has grown.
                self._limits[process] = resident * _GROWTH
                self._fail(f"{size} and cannot be renewed: {err.strerror}")
                return None
            self._say(f"{size}, renewing it after its batch")
            return renewal
        return None

    def _follow(self, renewal: _Renewal, limit_bytes: int) -> _Renewal | None:
        """Returns the renewal if it is still in progress."""
        process, busy = renewal.process, renewal.busy_file.exists()
        # A single worker answers nobody until it is renewed; with more of them, the pod keeps serving.
        only = self._health.declared == 1 and busy and process.alive
        self._health.set_unready_reason("the only worker is being renewed" if only else None)
        if not process.alive:
            renewal.request_file.unlink(missing_ok=True)
            renewal.busy_file.unlink(missing_ok=True)
            return None
        if busy:
            return self._follow_load(renewal)
        if renewal.request_file.exists():
            return self._follow_request(renewal)
        resident = resident_bytes(process.pid)
        self.renewed += 1
        self._say(f"worker {renewal.worker} is renewed, {resident / 1e6:.0f} MB")
        self._limits[process] = max(limit_bytes, resident * _GROWTH)
        return None

    def _follow_request(self, renewal: _Renewal) -> _Renewal | None:
        if (waited_s := self._clock() - renewal.since) < self._batch_s:
            # The worker looks for the file between two batches, so an idle worker needs a batch.
            self._request_inference()
            return renewal
        try:
            renewal.request_file.unlink()
        except FileNotFoundError:
            # The worker has begun at the last moment.
            return renewal
        self._limits[renewal.process] = float("inf")
        self._fail(
            f"worker {renewal.worker} did not renew itself within {waited_s:.0f} s and is left alone: a "
            "handler of your own must call `marina.handlers.renewal.arm` in `initialize`"
        )
        return None

    def _follow_load(self, renewal: _Renewal) -> _Renewal | None:
        if not renewal.taken_up:
            renewal.taken_up, renewal.since = True, self._clock()
        if (waited_s := self._clock() - renewal.since) >= self._load_s:
            renewal.since = self._clock()
            self._fail(
                f"worker {renewal.worker} has not loaded the model again after {waited_s:.0f} s, "
                "`serving.startup_timeout_s`; it is killed, and TorchServe starts another"
            )
            with suppress(ProcessLookupError):
                os.kill(renewal.process.pid, signal.SIGKILL)
        return renewal

    def _fail(self, text: str) -> None:
        self.failed += 1
        self._say(f"warning: {text}")
