"""The time of the day of what was stamped with the machine's monotonic clock.

Door, workers and this process all stamp with that clock, so that a request's times are in order whoever took them; only
here they become times of the day, which may jump."""

import time

# A read that was interrupted between the two clocks is off by as long: the quickest of some is taken.
_READS = 5
_AGE_NS = 30 * 10**9


class Clock:
    """Belongs to one thread."""

    def __init__(self) -> None:
        self._offset_ns, self._read_at = 0, -_AGE_NS

    def since_1970_ns(self, monotonic_ns: int) -> int:
        """The time of the day, ns since 1970."""
        if time.monotonic_ns() - self._read_at > _AGE_NS:
            self._read()
        return monotonic_ns + self._offset_ns

    def _read(self) -> None:
        reads = [(time.monotonic_ns(), time.time_ns(), time.monotonic_ns()) for _ in range(_READS)]
        before, day, after = min(reads, key=lambda read: read[2] - read[0])
        self._offset_ns, self._read_at = day - (before + after) // 2, after
