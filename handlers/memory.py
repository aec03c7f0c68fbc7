"""Memory that a large request took, given back to the system after its batch.

The server tells glibc to keep what is freed, because a network's layers take and free megabytes at every batch. Without
this, a worker would stay as large as its largest request ever made it."""

import ctypes
from collections.abc import Callable

# Smaller requests are too common to be worth the page faults of the next batch.
_WORTH_BYTES = 64_000_000


class _Ledger:
    largest_bytes = 0


def note_estimate(estimated_bytes: int) -> None:
    """A request of this batch is about to take so much."""
    _Ledger.largest_bytes = max(_Ledger.largest_bytes, estimated_bytes)


def release_freed() -> bool:
    """Call it between two batches; whether there was anything to give."""
    noted, _Ledger.largest_bytes = _Ledger.largest_bytes, 0
    if noted < _WORTH_BYTES or _trim is None:
        return False
    _trim(0)
    return True


def _find_trim() -> Callable[[int], int] | None:
    """glibc's `malloc_trim`; other C libraries have none and need none."""
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None
    return trim


_trim = _find_trim()
