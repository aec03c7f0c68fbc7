"""Pauses a server while another one is measured: even an idle server does some work, on the same cores."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from marina.loadtest.measuring import descendants


@contextmanager
def paused(pid: int | None) -> Iterator[None]:
    """Stops the processes of the server `pid` (SIGSTOP) inside the context; does nothing for None.

    If this process is killed, the kernel kills the server, paused or not (`loadtest/running/target.py`)."""
    family = [] if pid is None else [pid, *descendants(pid)]
    try:
        for process in family:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGSTOP)
        yield
    finally:
        # Children first: a parent that is resumed may check whether they are alive.
        for process in reversed(family):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)
