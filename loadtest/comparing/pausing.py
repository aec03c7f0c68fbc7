"""Pauses a server while another one is measured: even an idle server does some work, on the same cores."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from marina.loadtest.measuring import descendants

# A shell command that waits until its input ends, then resumes the processes.
_WAKER = ["/bin/sh", "-c", 'read -r _; kill -CONT "$@"', "sh"]


@contextmanager
def paused(pid: int | None) -> Iterator[None]:
    """Stops the processes of the server `pid` (SIGSTOP) inside the context; does nothing for None.

    They are resumed even if this process is killed: another process waits until our end of a pipe is closed."""
    if pid is None:
        yield
        return
    family = [pid, *descendants(pid)]
    # Children first: a parent that is resumed may check whether they are alive.
    command = [*_WAKER, *map(str, reversed(family))]
    waker = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        for process in family:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGSTOP)
        yield
    finally:
        waker.communicate()
