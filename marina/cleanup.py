"""Cleans up after long work, however it ends: no process and no temporary file is left, not even a compiler's."""

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

from marina.config.machine import environment_with, stops_as_interrupt
from marina.guardian import JOB_VARIABLE

_PATIENCE_S = 5.0
_UNLOCKED_S = 60


@contextmanager
def cleanup_on_exit() -> Iterator[Callable[[], bool]]:
    """Makes the first signal that stops work raise KeyboardInterrupt, and ignores further ones; yields a function that
    tells whether one has come.

    At the end, kills every process that was started in the `with` block, directly or by its children, and removes the
    temporary folder that all of them use."""
    from marina.server import adopt_orphans, children

    with stops_as_interrupt(signal.SIGINT) as interrupted, _temporary_folder() as folder, _guardian(folder):
        earlier = set(children(os.getpid()))
        adopt_orphans()
        try:
            yield interrupted
        finally:
            _kill_children(earlier)


@contextmanager
def _temporary_folder() -> Iterator[str]:
    """Makes a temporary folder for this process and its children, and removes it at the end.

    So the files of a killed compiler, and torch's cache, do not stay. The folder is locked while it is in use; unlocked
    ones were left when a machine went down, and are removed here too."""
    prefix = f"marina-job-{os.getuid()}-"
    for lock in Path(tempfile.gettempdir()).glob(f"{prefix}*/.lock"):
        _remove_if_unlocked(lock)
    folder = tempfile.mkdtemp(prefix=prefix)
    with open(Path(folder, ".lock"), "w", encoding="ascii") as lock_file:
        fcntl.flock(lock_file, fcntl.LOCK_EX)
        tempfile.tempdir = folder
        try:
            with environment_with({"TMPDIR": folder}):
                yield folder
        finally:
            tempfile.tempdir = None
            # torch stores the folder of its cache in the environment.
            for name in [
                name for name, value in os.environ.items() if value.startswith(folder) and name != JOB_VARIABLE
            ]:
                del os.environ[name]
            shutil.rmtree(folder, ignore_errors=True)


def _remove_if_unlocked(lock: Path) -> None:
    with suppress(OSError), lock.open("r", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Another process may have just made it, and not locked it yet.
        if time.time() - lock.stat().st_mtime > _UNLOCKED_S:
            shutil.rmtree(lock.parent, ignore_errors=True)


@contextmanager
def _guardian(folder: str) -> Iterator[None]:
    """Runs a guardian process, which does the same cleanup if this process is killed."""
    script = Path(__file__).with_name("guardian.py")
    command = [sys.executable, "-I", "-S", str(script), folder]
    # Without our stdout and stderr, so that whoever reads these to the end does not wait for the guardian as well.
    guardian = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        with environment_with({JOB_VARIABLE: folder}):
            yield
    finally:
        guardian.communicate()


def _kill_children(earlier: set[int]) -> None:
    """Kills all children except the earlier ones, and then their children, which this process adopts as orphans."""
    from marina.server import children

    until = time.monotonic() + _PATIENCE_S
    while (left := set(children(os.getpid())) - earlier) and time.monotonic() < until:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
