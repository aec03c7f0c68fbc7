"""Gives each worker a private folder for what torch unpacks, so that it can be removed after the worker.

torch unpacks each compiled package into a new folder under `TMPDIR`, loads the library from there, and removes it when
the package is released. A worker that is killed or renewed never gets to that."""

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

_PREFIX = "marina-worker-"
# A file of this name in the folder is locked as long as the worker needs the folder; the kernel ends the lock with the
# process, in whichever container that was.
_MARKER = ".marina-worker"


@contextmanager
def unpacking() -> Iterator[None]:
    """Makes torch unpack into a new folder that only this user can write to, after removing the folders of dead
    workers. The files are removed at the end: loaded libraries do not need them any more."""
    before = os.environ.get("TMPDIR")
    parent = Path(before or "/tmp")
    for folder in parent.glob(f"{_PREFIX}*"):
        if _is_left_over(folder):
            shutil.rmtree(folder, ignore_errors=True)
    own = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    with _marked(own):
        os.environ["TMPDIR"] = str(own)
        try:
            yield
        finally:
            if before is None:
                del os.environ["TMPDIR"]
            else:
                os.environ["TMPDIR"] = before
            shutil.rmtree(own, ignore_errors=True)


@contextmanager
def _marked(folder: Path) -> Iterator[None]:
    """Holds the folder's lock. The marker appears when it is locked already, so that nobody finds it without an
    owner."""
    unfinished = folder / f"{_MARKER}.new"
    with unfinished.open("wb") as stream:
        with suppress(OSError):  # a file system without locks: then nobody removes the folder of a killed worker
            _lock(stream)
            unfinished.rename(folder / _MARKER)
        yield


def _is_left_over(folder: Path) -> bool:
    """Whether a worker of this user made the folder, and lives no more."""
    try:
        is_private = _is_mine(folder, stat.S_ISDIR) and stat.S_IMODE(folder.lstat().st_mode) == 0o700
        if not is_private or not _is_mine(folder / _MARKER, stat.S_ISREG):
            return False
        with (folder / _MARKER).open("rb") as stream:
            _lock(stream)
            return True
    except OSError:
        return False


def _is_mine(path: Path, is_kind: Callable[[int], bool]) -> bool:
    found = path.lstat()
    return is_kind(found.st_mode) and found.st_uid == os.getuid()


def _lock(stream: IO[bytes]) -> None:
    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
