"""Keeps Python's garbage collector from what stays, and returns the memory of large requests to the system after their
batch.

The server makes glibc keep freed memory, because a network's layers allocate and free megabytes in every batch. Without
this module, a worker would stay as large as its largest request made it."""

import ctypes
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Smaller requests are too common to be worth the page faults of the next batch.
_WORTH_BYTES = 64_000_000


@contextmanager
def without_collecting() -> Iterator[None]:
    """For what makes many objects and hardly any garbage, such as importing torch: looking through them for garbage
    takes a good part of its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def made_to_stay() -> Iterator[None]:
    """For what a worker keeps to its end: no later collection looks at it either."""
    with without_collecting():
        yield
        gc.freeze()


class _Ledger:
    largest_bytes = 0


def note_estimate(estimated_bytes: int) -> None:
    """Call this before decoding a request; `estimated_bytes` is the memory that it is about to take."""
    _Ledger.largest_bytes = max(_Ledger.largest_bytes, estimated_bytes)


def release_freed() -> bool:
    """Call this between two batches. Returns true if a request was large enough to be worth it."""
    largest_bytes, _Ledger.largest_bytes = _Ledger.largest_bytes, 0
    if largest_bytes < _WORTH_BYTES or _trim is None:
        return False
    _trim(0)
    return True


def _find_trim() -> Callable[[int], int] | None:
    """glibc's `malloc_trim`; None with other C libraries, which have none and need none."""
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None
    return trim


_trim = _find_trim()
