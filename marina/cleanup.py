"""The end of long work, however it comes: no process and no temporary file of it is left, not even a compiler's."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from marina.guardian import JOB_VARIABLE

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_PATIENCE_S = 5.0
_SETTLED_S = 60


@contextmanager
def cleanup_on_exit() -> Iterator[Callable[[], bool]]:
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
    try:
        with _temporary_folder() as folder, _guarded(folder):
            others = set(children(os.getpid()))
            adopt_orphans()
            try:
                yield lambda: bool(came)
            finally:
                _kill_children(others)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _temporary_folder() -> Iterator[str]:
    """A compiler that is killed leaves its files, and torch keeps a cache: here both end with the folder. It is locked
    while it is ours; one that nobody holds any more was left by a machine that went down, and is removed."""
    before, prefix = os.environ.get("TMPDIR"), f"marina-job-{os.getuid()}-"
    for lock in Path(tempfile.gettempdir()).glob(f"{prefix}*/.lock"):
        _remove_if_left(lock)
    folder = tempfile.mkdtemp(prefix=prefix)
    with open(Path(folder, ".lock"), "w", encoding="ascii") as lock_file:
        fcntl.flock(lock_file, fcntl.LOCK_EX)
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        try:
            yield folder
        finally:
            tempfile.tempdir = None
            if before is None:
                del os.environ["TMPDIR"]
            else:
                os.environ["TMPDIR"] = before
            # torch notes the folder of its cache in the environment.
            for name in [
                name for name, value in os.environ.items() if value.startswith(folder) and name != JOB_VARIABLE
            ]:
                del os.environ[name]
            shutil.rmtree(folder, ignore_errors=True)


def _remove_if_left(lock: Path) -> None:
    with suppress(OSError), lock.open("r", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # One that was made this moment is not locked yet.
        if time.time() - lock.stat().st_mtime > _SETTLED_S:
            shutil.rmtree(lock.parent, ignore_errors=True)


@contextmanager
def _guarded(folder: str) -> Iterator[None]:
    """A process beside this one that does the same when this one is killed."""
    before = os.environ.get(JOB_VARIABLE)
    script = Path(__file__).with_name("guardian.py")
    command = [sys.executable, "-I", "-S", str(script), folder]
    # Nobody who reads our output to its end waits for the guardian's.
    guardian = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    os.environ[JOB_VARIABLE] = folder
    try:
        yield
    finally:
        if before is None:
            del os.environ[JOB_VARIABLE]
        else:
            os.environ[JOB_VARIABLE] = before
        guardian.communicate()


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
