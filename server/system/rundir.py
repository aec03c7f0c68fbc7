"""A private folder for work that starts other processes: a server, a compilation. With it, all of them are cleaned up.

`marina-<uid>-<random>` is the folder, and `marina-<uid>-<random>.lock` is locked while the work goes on. The processes
have the folder's path in their environment. At the end they are killed and the folder is removed; after a crash, the
next work that begins on this machine does that."""

import fcntl
import os
import shutil
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from marina.config.errors import InputError

# The folder, in the environment of every process that is started for it.
OWNER_VARIABLE = "MARINA_RUN"
# This file is created in the directory when a drain's time is over; `handlers/generation/handler.py` looks for it.
CLOSING_FILE = "closing"
_PATIENCE_S = 10.0


class RunDirectory:
    """A private directory and its lock; `close` removes both. `handles` are open as long as it is in use."""

    def __init__(self, path: Path, lock: Path, *handles: int) -> None:
        self.path = path
        self._lock = lock
        self._handles = list(handles)

    def close(self) -> None:
        """Ends the processes, and removes the directory and the lock; safe to call twice."""
        end_processes(self.path)
        # Under another name, so that a page that is being made at the moment writes no file into it.
        gone = self.path.with_suffix(".gone")
        with suppress(OSError):
            self.path.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
        self._lock.unlink(missing_ok=True)
        while self._handles:
            os.close(self._handles.pop())


def create_run_directory(parent: Path | None = None) -> RunDirectory:
    """Cleans up after dead work, and creates a directory for this one."""
    parent = parent or temporary_parent()
    prefix = f"marina-{os.getuid()}-"
    for leftover in parent.glob(f"{prefix}*.lock"):
        _remove_if_dead(leftover)
    try:
        while True:
            lock = parent / f"{prefix}{os.urandom(4).hex()}.lock"
            handle = _open_locked(lock, os.O_CREAT | os.O_EXCL)
            # Before it was locked, another one may have removed it as a leftover.
            if handle is not None and lock.exists():
                break
        path = lock.with_suffix("")
        path.mkdir(mode=0o700)
        # systemd deletes old files below /tmp, but leaves a locked directory alone.
        used = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(used, fcntl.LOCK_SH)
    except OSError as err:
        hint = "set TMPDIR to a writable folder"
        raise InputError(f"{parent}: cannot create temporary files: {err.strerror}", hint=hint) from err
    return RunDirectory(path, lock, handle, used)


def end_processes(directory: Path, *, but: Collection[psutil.Process] | None = None) -> None:
    """Kills every process that was started for this directory, or for one inside, and waits until they are gone. With
    `but`, also those that descend from this process, except these: a fork has the environment of its parent's start."""
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until:
        left = set(_processes_of(directory))
        if but is not None:
            left |= {each for each in psutil.Process().children(recursive=True) if each not in but}
        for process in left:
            with suppress(psutil.Error):
                process.kill()
        if not left:
            return
        psutil.wait_procs(left, timeout=1)


def _processes_of(directory: Path) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            owner = process.environ().get(OWNER_VARIABLE)
            if owner and process.pid != os.getpid() and Path(owner).is_relative_to(directory):
                yield process


def temporary_parent() -> Path:
    """`TMPDIR`, or `/tmp`, absolute: Java runs in another folder. Not `tempfile.gettempdir()`, which silently picks
    another folder if that one is full."""
    return Path(os.environ.get("TMPDIR") or "/tmp").absolute()


def frozen_file(pid: int) -> Path:
    """While this file is there, `/ready` of the draining server with this pid stays 200, as if nobody had asked since
    before the drain: `marina drill shutdown` creates it."""
    return temporary_parent() / f"marina-{pid}.frozen"


def _remove_if_dead(lock: Path) -> None:
    try:
        handle = _open_locked(lock, 0)
    except OSError:
        # Removed in the meantime, by its own process or by another one.
        return
    if handle is not None:
        RunDirectory(lock.with_suffix(""), lock, handle).close()


def _open_locked(lock: Path, flags: int) -> int | None:
    """The open and locked file, or None if another process holds the lock."""
    handle = os.open(lock, os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle
