"""Memory of the workers against `serving.max_worker_memory_mb`: the one over it is renewed, one at a time.

TorchServe cannot do it: killing a worker fails the batch it holds, and scaling down takes the newest first. So the
worker does it itself at the one moment when nothing of it is lost, between two batches (`handlers/renewal.py`): it
replaces its own program and keeps its connection to TorchServe, which notices nothing but one slow batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from server.health import Health
from server.processes import Identity, resident_bytes

_LOOK_EVERY_S = 0.5
# A new worker that is over the limit again is what its model needs; it is renewed only when it has grown this much.
_GROWTH = 1.2


class Recycler:
    """Asks by a file `<pid>` in `directory`; the worker renames it to `<pid>.busy` while it renews itself, and removes
    it when it has loaded the model again."""

    def __init__(
        self,
        limit_mb: int | None,
        directory: Path,
        health: Health,
        *,
        nudge: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        self._limit_bytes = limit_mb * 1_000_000 if limit_mb else None
        self._directory, self._health = directory, health
        self._nudge, self._say = nudge, say
        self._asked: tuple[str, Identity] | None = None
        self._limits: dict[Identity, float] = {}
        self._next_look = 0.0
        self.recycled = 0

    def look(self) -> None:
        """Asks the worker that needs it, or sees what became of the one asked. Cheap; call it often."""
        now = time.monotonic()
        if self._limit_bytes is None or now < self._next_look:
            return
        self._next_look = now + _LOOK_EVERY_S
        if self._asked is not None:
            self._follow(*self._asked)
        elif self._health.ready:
            self._ask(self._limit_bytes)

    def _ask(self, limit_bytes: int) -> None:
        for seat in self._health.seats():
            process = seat.process
            if process and (resident := resident_bytes(process.pid)) > self._limits.get(process, limit_bytes):
                (self._directory / str(process.pid)).touch()
                self._asked = seat.name, process
                self._say(f"worker {seat.name} has {resident / 1e6:.0f} MB, renewing it after its batch")
                return

    def _follow(self, name: str, process: Identity) -> None:
        asked = self._directory / str(process.pid)
        busy = asked.with_suffix(".busy")
        # The only worker answers nobody until it is new; with others the pod serves on.
        only = self._health.declared == 1 and busy.exists() and process.alive
        self._health.take_out("the only worker is being renewed" if only else None)
        if not process.alive:
            asked.unlink(missing_ok=True)
            busy.unlink(missing_ok=True)
        elif asked.exists():
            # It looks between two batches; an idle one has to be given one.
            self._nudge()
            return
        elif busy.exists():
            return
        else:
            resident = resident_bytes(process.pid)
            self.recycled += 1
            self._say(f"worker {name} is new, {resident / 1e6:.0f} MB")
            self._limits[process] = max(self._limit_bytes or 0, resident * _GROWTH)
        self._asked = None
