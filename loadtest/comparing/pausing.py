"""Lets a server stand still while another one is measured: an idle one still looks after itself, on the same cores."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from loadtest.measuring import descendants

# Waits for the end of its input, then lets them go on.
_WAKER = ["/bin/sh", "-c", 'read -r _; kill -CONT "$@"', "sh"]


@contextmanager
def paused(pid: int | None) -> Iterator[None]:
    """The server's processes stand still meanwhile; without a process of ours nothing does.

    They go on whatever becomes of us: what wakes them is a process that waits for our end of a pipe to close.
    """
    if pid is None:
        yield
        return
    family = [pid, *descendants(pid)]
    # Children first: a parent that runs again may ask them whether they live.
    command = [*_WAKER, *map(str, reversed(family))]
    waker = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        for process in family:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGSTOP)
        yield
    finally:
        waker.communicate()
