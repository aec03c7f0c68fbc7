"""What a measurement needs around it: a folder to itself, for another would overwrite its records, and a proper end."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from marina.config.errors import InputError
from marina.config.machine import stops_as_interrupt


@contextmanager
def measuring_into(folder: Path) -> Iterator[None]:
    """Locks a folder until its context ends, or the process does; InputError if it is locked.

    Meanwhile SIGTERM and a closed terminal do what Ctrl-C does."""
    lock = folder / ".measuring"
    folder.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as err:
            text = f"{folder}: another measurement is running and will write its records there"
            raise InputError(text, hint="wait until it ends, or choose another folder by `--out`") from err
        try:
            with stops_as_interrupt():
                yield
        finally:
            lock.unlink(missing_ok=True)
