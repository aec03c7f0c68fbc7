"""Lets the main thread wait for the signals that stop a server and for SIGCHLD, so that no work is done inside signal
handlers."""

import os
import select
import signal
import types
from collections.abc import Iterable

_STOPPING = (signal.SIGTERM, signal.SIGQUIT, signal.SIGINT, signal.SIGHUP)
# By default these end a process at once. Other servers open their log again for them, so log rotation sends them.
_WITHOUT_EFFECT = (signal.SIGUSR1, signal.SIGUSR2)


class Signals:
    """Catches the signals from creation until `close`; for the main thread only."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        caught = [*_STOPPING, *_WITHOUT_EFFECT, signal.SIGCHLD]
        if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
            # Started with `nohup`.
            caught.remove(signal.SIGHUP)
        # First, so that no signal arrives between the old handlers and the pipe.
        self._wakeup_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, self._ignore) for number in caught}
        self.stops: list[signal.Signals] = []
        """The signals to stop, in the order received. A SIGHUP counts only as the first one: a closed terminal sends
        several."""

    def wait(self, timeout_s: float, *, ends: Iterable[int] = ()) -> None:
        """Returns after a signal, after the end of a process that one of the handles `ends` is for, or after
        `timeout_s`."""
        waiting = select.poll()
        for handle in (self._read, *ends):
            waiting.register(handle, select.POLLIN)
        waiting.poll(timeout_s * 1000)
        try:
            numbers = os.read(self._read, 4096)
        except BlockingIOError:
            return
        for number in numbers:
            if number in _STOPPING and not (number == signal.SIGHUP and self.stops):
                self.stops.append(signal.Signals(number))

    def close(self) -> None:
        """Restores the previous signal handlers."""
        signal.set_wakeup_fd(self._wakeup_before)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._read)
        os.close(self._write)

    @staticmethod
    def _ignore(number: int, frame: types.FrameType | None) -> None:
        """Does nothing: the signal's number arrives through the pipe, but only if a handler is set."""
