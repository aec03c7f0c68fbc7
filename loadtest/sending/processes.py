"""What every process that sends needs of the machine."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal

# A node may have to pull the image first.
TOGETHER_WITHIN_S = 600.0

_PR_SET_PDEATHSIG = 1


def go_first() -> None:
    """Arrivals must not wait for a core that the server or anything else is using.

    Only a real-time class helps on a full machine (measured: p99 of the lag 10 ms without, 1.2 ms with it); where that
    is not allowed the verdict says so, as late arrivals.
    """
    with contextlib.suppress(PermissionError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def end_with_parent(by: signal.Signals) -> None:
    """Called in a child before it becomes another program: it gets this signal when the one who started it is gone.

    Pipes tell it too, but not one that spins: at a real-time priority it would keep a core for ever.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, by, 0, 0, 0)


def ignore_ctrl_c() -> None:
    """Ctrl-C reaches the whole terminal's group; the first process decides, by closing a pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
