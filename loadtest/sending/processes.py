"""The processes that send load: their environment, priority and way with Ctrl-C, and what they say to each other.

Messages go over Locust's connection, beside its own. A worker reports that it is HERE, gets its PLAN, and reports that
its user is WAITING. The leader asks for its CLOCK a few times, and names a moment on it to START. Then it reports
every SECOND, and at the end what it MEASURED, or why it FAILED. STOP ends its load early."""

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

# A node may have to pull the image first.
GATHER_TIMEOUT_S = 600.0
HERE, PLAN, WAITING, CLOCK, START, SECOND, STOP, MEASURED, FAILED = (
    f"marina_{name}" for name in ("here", "plan", "waiting", "clock", "start", "second", "stop", "measured", "failed")
)


def listen(runner: Any, name: str, answer: Callable[[dict[str, Any]], None]) -> None:
    """Calls `answer` with the data of each message of this name, in the order in which Locust's runner gets them."""
    runner.register_message(name, lambda environment, msg: answer(msg.data))  # noqa: ARG005


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
