"""After a neighbour has failed, it is not asked for a moment, and for longer after each further failure."""

import time
from collections.abc import Callable


class Backoff:
    """Used by several threads: each change is one assignment, and a lost one costs a try."""

    def __init__(self, first_s: float, longest_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._first_s, self._longest_s, self._clock = first_s, longest_s, clock
        self._next_s, self._until = first_s, 0.0

    @property
    def is_active(self) -> bool:
        """Whether it is not to be asked now."""
        return self._clock() < self._until

    def fail(self) -> None:
        """It has failed."""
        self._until = self._clock() + self._next_s
        self._next_s = min(self._longest_s, 2 * self._next_s)

    def succeed(self) -> None:
        """It has answered."""
        self._next_s = self._first_s
