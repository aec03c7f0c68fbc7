"""Answers in this worker's memory: so many bytes of those that were asked for last, each for its time."""

import time
from collections import OrderedDict
from collections.abc import Callable

# What an entry takes beside its value: the key, the tuple, its place in the order.
_OVERHEAD = 300


class MemoryCache:
    """Used by one thread."""

    def __init__(self, max_bytes: int, clock: Callable[[], float] = time.time) -> None:
        self._max_bytes, self._clock = max_bytes, clock
        self._entries: OrderedDict[bytes, tuple[float, bytes]] = OrderedDict()
        self.bytes = 0
        """What all entries take."""

    def get(self, key: bytes) -> bytes | None:
        """The value, unless it has expired."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        until, value = entry
        if self._clock() >= until:
            self._drop(key)
            return None
        self._entries.move_to_end(key)
        return value

    def put(self, key: bytes, value: bytes, until: float) -> None:
        """Stores it, and removes as many of the oldest as necessary; one that is larger than all the room is not
        stored."""
        self._drop(key)
        if len(value) + _OVERHEAD > self._max_bytes:
            return
        self._entries[key] = (until, value)
        self.bytes += len(value) + _OVERHEAD
        while self.bytes > self._max_bytes:
            self._drop(next(iter(self._entries)))

    def _drop(self, key: bytes) -> None:
        if entry := self._entries.pop(key, None):
            self.bytes -= len(entry[1]) + _OVERHEAD
