"""Shows the progress of long work on stderr: one line for each step, with the time it took."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TextIO


def replace_line(text: str, stream: TextIO) -> None:
    """Shows text instead of a terminal's last line, cut to its width: of a line that wraps, a part would stay."""
    width = 0  # as of a terminal that does not know it
    with suppress(OSError, ValueError):
        width = os.get_terminal_size(stream.fileno()).columns
    print(f"\r\x1b[K{text[: width - 1] if width else text}", end="", file=stream, flush=True)


class Progress:
    """Prints steps and messages; nothing if `quiet`, and no running seconds if the stream is not a terminal."""

    def __init__(self, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self.quiet = quiet
        self._stream = stream or sys.stderr
        self._on_terminal = self._stream.isatty()

    def say(self, text: str) -> None:
        """Prints one line."""
        if not self.quiet:
            print(text, file=self._stream, flush=True)

    @contextmanager
    def step(self, text: str, so_far: Callable[[], str] = str) -> Iterator[None]:
        """Prints the step's name and time when it ends; on a terminal also while it runs, with running seconds, and how
        much is done so far."""
        begin = time.monotonic()
        done = threading.Event()
        ticker = threading.Thread(target=self._tick, args=(text, so_far, begin, done), daemon=True)
        if self._on_terminal and not self.quiet:
            ticker.start()
        try:
            yield
        except BaseException:
            self._finish(done, ticker, f"  {text:<44} failed after {time.monotonic() - begin:.1f} s")
            raise
        self._finish(done, ticker, f"  {text:<44} {time.monotonic() - begin:6.1f} s")

    def _tick(self, text: str, so_far: Callable[[], str], begin: float, done: threading.Event) -> None:
        while not done.wait(0.2):
            replace_line(f"  {text:<44} {time.monotonic() - begin:6.1f} s … {so_far()}", self._stream)

    def _finish(self, done: threading.Event, ticker: threading.Thread, line: str) -> None:
        done.set()
        if ticker.ident is not None:
            ticker.join()
            replace_line("", self._stream)
        self.say(line)
