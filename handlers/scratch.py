"""Where a worker unpacks what torch loads: a folder of its own, which does not outlive it.

torch unpacks each compiled package into a new folder under `TMPDIR` and removes it when the package is let go, which a
worker that is killed or renewed never does."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PREFIX = "worker-"


@contextmanager
def unpacking(*, keep: bool) -> Iterator[None]:
    """Torch unpacks into this worker's folder meanwhile; what workers left that are gone is removed first. Libraries
    stay loaded without their files, so that these go at the end, unless they are to be kept."""
    before = os.environ.get("TMPDIR")
    parent = Path(before or "/tmp")
    for folder in parent.glob(f"{_PREFIX}*"):
        if _is_left_over(folder.name.removeprefix(_PREFIX)):
            shutil.rmtree(folder, ignore_errors=True)
    own = parent / f"{_PREFIX}{os.getpid()}"
    own.mkdir(mode=0o700, exist_ok=True)
    os.environ["TMPDIR"] = str(own)
    try:
        yield
    finally:
        if before is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = before
        if not keep:
            shutil.rmtree(own, ignore_errors=True)


def _is_left_over(pid: str) -> bool:
    """Of a process that is gone, or of this one before it was renewed."""
    return pid.isdecimal() and (int(pid) == os.getpid() or not Path("/proc", pid).exists())
