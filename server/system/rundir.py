"""A private directory for each server. If a server crashes, the next one removes its directory.

`marina-<uid>-<random>` is the directory; the server holds a lock on `marina-<uid>-<random>.lock` while it lives."""

import fcntl
import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path

from marina.config.errors import InputError

# Java and its workers have this in their environment, so that they can be found after their supervisor was killed.
OWNER_VARIABLE = "MARINA_RUN"
# This file is created in the directory when a drain's time is over; `handlers/generation/handler.py` looks for it.
CLOSING_FILE = "closing"
# TorchServe's workers listen on socket files like this one, and the kernel limits the length of their paths.
_SOCKET, _LONGEST_SOCKET = "tmp/.ts.sock.9000", 107


class RunDirectory:
    """A private directory and its lock; `close` removes both. `handles` are open as long as it is in use."""

    def __init__(self, path: Path, lock: Path, *handles: int) -> None:
        self.path = path
        self._lock = lock
        self._handles = list(handles)

    def close(self) -> None:
        """Removes the directory and the lock; safe to call twice."""
        # Under another name, so that a page that is being made at the moment writes no file into it.
        gone = self.path.with_suffix(".gone")
        with suppress(OSError):
            self.path.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
        self._lock.unlink(missing_ok=True)
        while self._handles:
            os.close(self._handles.pop())


def create_run_directory(parent: Path | None = None) -> RunDirectory:
    """Removes what dead servers left, and creates a directory for this one."""
    parent = parent or temporary_parent()
    prefix = f"marina-{os.getuid()}-"
    longest = _LONGEST_SOCKET - len(f"/{prefix}01234567/{_SOCKET}")
    if len(os.fsencode(parent)) > longest:
        text = f"`TMPDIR`: got `{parent}`, too long for TorchServe's sockets, allowed: at most {longest} characters"
        raise InputError(text, hint="TMPDIR=/tmp")
    if str(parent).count("$$") > 1:
        text = f"`TMPDIR`: got `{parent}`, but TorchServe replaces what is between `$$` and `$$` with a variable"
        raise InputError(text, hint="TMPDIR=/tmp")
    for leftover in parent.glob(f"{prefix}*.lock"):
        _remove_if_dead(leftover)
    try:
        if os.statvfs(parent).f_flag & os.ST_NOEXEC:
            text = f"`TMPDIR`: got `{parent}`, which is mounted `noexec`, but Java and workers load libraries there"
            raise InputError(text, hint="set TMPDIR to a folder of another mount")
        while True:
            lock = parent / f"{prefix}{os.urandom(4).hex()}.lock"
            handle = _open_locked(lock, os.O_CREAT | os.O_EXCL)
            # Before it was locked, another server may have removed it as a leftover.
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


def temporary_parent() -> Path:
    """`TMPDIR`, or `/tmp`, absolute: Java runs in another folder. Not `tempfile.gettempdir()`, which silently picks
    another folder if that one is full."""
    return Path(os.environ.get("TMPDIR") or "/tmp").absolute()


def _remove_if_dead(lock: Path) -> None:
    try:
        handle = _open_locked(lock, 0)
    except OSError:
        # Removed in the meantime, by its own server or by another one.
        return
    if handle is None:
        return
    path = lock.with_suffix("")
    mark = f"{OWNER_VARIABLE}={path}".encode()
    for environment in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in environment.read_bytes().split(b"\0"):
                os.kill(int(environment.parent.name), signal.SIGKILL)
        except OSError:
            continue
    RunDirectory(path, lock, handle).close()


def _open_locked(lock: Path, flags: int) -> int | None:
    """The open and locked file, or None if another process holds the lock."""
    handle = os.open(lock, os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle
