"""Settings of the processes that send load: environment, priority, and how they handle Ctrl-C."""

import contextlib
import os
import signal
from pathlib import Path

# A node may have to pull the image first.
GATHER_TIMEOUT_S = 600.0


def raise_priority() -> None:
    """Makes this process real-time, so that requests need not wait for a core that the server or anything else uses.

    Only a real-time class helps on a busy machine (measured: p99 of the lag 10 ms without it, 1.2 ms with it). If that
    is not allowed, the verdict shows it as requests that were sent late."""
    with contextlib.suppress(PermissionError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def child_environment() -> dict[str, str]:
    """The environment of a child process that can import our packages, wherever it runs."""
    root = str(Path(__file__).parents[3])
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}


def ignore_interrupts() -> None:
    """Ignores Ctrl-C and SIGHUP, which a terminal sends to all processes, and SIGTERM, as `timeout` sends it. The first
    process decides, by closing a pipe."""
    for interrupt in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(interrupt, signal.SIG_IGN)
