"""Gives each worker a folder of its own for what torch unpacks, so that it can be removed after the worker.

torch unpacks each compiled package into a new folder under `TMPDIR`, and removes it when the package is released. A
worker that is killed or renewed never gets to that."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PREFIX = "worker-"


@contextmanager
def unpacking() -> Iterator[None]:
    """Makes torch unpack into this worker's folder, after removing the folders of dead workers. The files are removed
    at the end: loaded libraries do not need them any more."""
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
        shutil.rmtree(own, ignore_errors=True)


def _is_left_over(pid: str) -> bool:
    """True if the process is gone, or is this one, from before it was renewed."""
    return pid.isdecimal() and (int(pid) == os.getpid() or not Path("/proc", pid).exists())
