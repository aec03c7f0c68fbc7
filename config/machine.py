"""What more than one package minds of the machine: how little room is too little, and with whom a process ends."""

from __future__ import annotations

import ctypes
import signal

# Of temporary files: below it a model that a new worker unpacks may not fit; the server warns, and an alert fires.
LOW_BYTES = 64_000_000
_PR_SET_PDEATHSIG = 1


def end_with_parent(by: signal.Signals) -> None:
    """Called in a child before it becomes another program: it gets this signal when the one who started it is gone,
    however that ended: the thread that started it, to be exact.

    Pipes tell it too, but not one that spins: at a real-time priority it would keep a core for ever.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, by, 0, 0, 0)
