"""A least-recently-used cache in this worker's memory, with a limit in bytes and an expiry time for each entry."""

import time
from collections import OrderedDict
from collections.abc import Callable

# Memory that an entry takes beside its value, for the key, the tuple and the links of the dictionary.
_OVERHEAD = 300


class MemoryCache:
    """Not thread-safe."""

    def __init__(self, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_bytes, self._clock = max_bytes, clock
        self._entries: OrderedDict[bytes, tuple[float, bytes]] = OrderedDict()
        self.bytes = 0
        """Memory that all entries take."""

    def get(self, key: bytes) -> bytes | None:
        """The value of a key; None if there is none or it has expired."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        until, value = entry
        if self._clock() >= until:
            self._drop(key)
            return None
        self._entries.move_to_end(key)
        return value

    def put(self, key: bytes, value: bytes, lasts_s: float) -> None:
        """Stores a value for so long, and removes the least recently used ones to make room. A value larger than the
        whole cache is not stored."""
        self._drop(key)
        if len(value) + _OVERHEAD > self._max_bytes:
            return
        self._entries[key] = (self._clock() + lasts_s, value)
        self.bytes += len(value) + _OVERHEAD
        while self.bytes > self._max_bytes:
            self._drop(next(iter(self._entries)))

    def _drop(self, key: bytes) -> None:
        if entry := self._entries.pop(key, None):
            self.bytes -= len(entry[1]) + _OVERHEAD
