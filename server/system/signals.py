"""SIGTERM, SIGINT and SIGCHLD as something the main thread waits for, without locks inside handlers."""

from __future__ import annotations

import os
import select
import signal
import types
from collections.abc import Iterable

_STOPPING = (signal.SIGTERM, signal.SIGINT)


class Signals:
    """Caught from creation until `close`; only in the main thread."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before = {number: signal.signal(number, self._ignore) for number in (*_STOPPING, signal.SIGCHLD)}
        self._wakeup_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self.stops: list[signal.Signals] = []
        """Those that asked for the end, in order."""

    def wait(self, timeout_s: float, *, ends: Iterable[int] = ()) -> None:
        """Returns when a signal came, when one of the processes that `ends` are handles of has ended, or after the
        time."""
        waiting = select.poll()
        for handle in (self._read, *ends):
            waiting.register(handle, select.POLLIN)
        waiting.poll(timeout_s * 1000)
        try:
            numbers = os.read(self._read, 4096)
        except BlockingIOError:
            return
        self.stops += [signal.Signals(number) for number in numbers if number in _STOPPING]

    def close(self) -> None:
        """Puts the handlers back that were there before."""
        signal.set_wakeup_fd(self._wakeup_before)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._read)
        os.close(self._write)

    @staticmethod
    def _ignore(number: int, frame: types.FrameType | None) -> None:
        """The number goes through the pipe; a handler must exist for that."""
