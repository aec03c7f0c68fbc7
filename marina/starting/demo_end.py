"""The end of a demo, however it comes: no process and no temporary file of it is left, not even a compiler's."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_PATIENCE_S = 5.0


@contextmanager
def everything_ends() -> Iterator[Callable[[], bool]]:
    """SIGINT and SIGTERM raise KeyboardInterrupt once and then only wait for the end; gives whether one came.

    What was started meanwhile, by us or by what we started, is killed at the end; all of it has one temporary folder.
    """
    from server import adopt_orphans, children

    came: list[int] = []

    def interrupt(number: int, _: object) -> None:
        came.append(number)
        # A second one would break off the very thing it asks for.
        if len(came) == 1:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in _SIGNALS}
    others = set(children(os.getpid()))
    adopt_orphans()
    try:
        with _temporary_folder():
            try:
                yield lambda: bool(came)
            finally:
                _kill_children(others)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _temporary_folder() -> Iterator[None]:
    """A compiler that is killed leaves its files, and torch keeps a cache: here both end with the folder."""
    before, folder = os.environ.get("TMPDIR"), tempfile.mkdtemp(prefix="marina-demo-")
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    try:
        yield
    finally:
        tempfile.tempdir = None
        if before is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = before
        shutil.rmtree(folder, ignore_errors=True)


def _kill_children(others: set[int]) -> None:
    """Ours and, because orphans become ours, those of the dead among them."""
    from server import children

    until = time.monotonic() + _PATIENCE_S
    while (left := set(children(os.getpid())) - others) and time.monotonic() < until:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
