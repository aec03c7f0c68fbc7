"""A pipe that holds TorchServe back in the middle of its stop: listener closed, connections alive.

On SIGTERM TorchServe closes its listeners, logs that, and then closes every client connection, answered or not. That
log line is written synchronously into this pipe (`config.render_log4j2`). While the gate is open somebody reads it; a
shut gate is full, so TorchServe waits at that line and goes on answering what it has. The drain ends it from there.
"""

from __future__ import annotations

import fcntl
import os
import selectors
from pathlib import Path

_PIPE_BYTES = 4096


class Gate:
    """The reading end; `lines` must be called by one thread until `shut`."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path, 0o600)
        # Both ends, so that Java's open never waits and its end never closes under us.
        self._pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._pipe, selectors.EVENT_READ)
        self._shut = False

    def lines(self, timeout_s: float) -> list[str]:
        """What TorchServe said of its start since the last call; empty when nothing came in time."""
        if self._shut or not self._selector.select(timeout_s):
            return []
        return os.read(self._pipe, 16 * _PIPE_BYTES).decode(errors="replace").splitlines()

    def shut(self) -> None:
        """From now on TorchServe cannot get past the closing of its listeners."""
        self._shut = True
        for piece in (b"\n" * _PIPE_BYTES, b"\n"):
            try:
                while True:
                    os.write(self._pipe, piece)
            except BlockingIOError:
                continue
