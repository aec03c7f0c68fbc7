"""How a server ended, as its exit code."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """2 is what `config.errors` gives to wrong input, before anything was started; 3 means INVALID in every verb."""

    DRAINED = 0
    """Stopped on request, every request answered."""
    CUT = 1
    """Stopped on request with requests unanswered: the drain bound was exceeded, or a second signal came."""
    JAVA_DIED = 4
    """TorchServe's Java ended by itself: killed, out of memory, or unable to start."""
    MODEL_FAILED = 5
    """TorchServe could not take the MAR, or a worker kept failing past `serving.retry_window_s`."""
