"""Keeps two measurements from writing into one folder: each would overwrite the records of the other."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from config.errors import InputError


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Locks a folder until its context ends, or the process does; InputError if it is locked or cannot be written."""
    lock = folder / ".measuring"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = lock.open("w")
    except OSError as err:
        raise InputError(f"{folder}: cannot be written: {err.strerror}") from err
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as err:
            text = f"{folder}: another measurement is running and will write its records there"
            raise InputError(text, hint="wait until it ends, or choose another folder by `--out`") from err
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)
