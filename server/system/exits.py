"""The exit codes of a server."""

from enum import IntEnum


class Exit(IntEnum):
    """How a server ended. 2 is missing here: `marina.config.errors` uses it for wrong input, before anything is
    started. So is 3: it means INVALID in every verb."""

    DRAINED = 0
    """Stopped on request, with every request answered."""
    CUT = 1
    """Stopped on request, with requests unanswered: the drain took too long, or a second signal came."""
    JAVA_DIED = 4
    """Java ended on its own: killed, out of memory, or unable to start."""
    MODEL_FAILED = 5
    """TorchServe could not load the MAR, or a worker kept failing for longer than a start may take."""
