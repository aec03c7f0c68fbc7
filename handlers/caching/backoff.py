"""After another server has failed, leaves it alone for a while, and for longer after each further failure."""

import time
from collections.abc import Callable


class Backoff:
    """May be used by several threads without a lock: each change is one assignment, and a lost one only costs one more
    attempt."""

    def __init__(self, first_s: float, longest_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._first_s, self._longest_s, self._clock = first_s, longest_s, clock
        self._next_s, self._until = first_s, 0.0

    @property
    def is_active(self) -> bool:
        """True while the server should not be asked."""
        return self._clock() < self._until

    def fail(self) -> None:
        """Records a failure: starts the pause and doubles the next one."""
        self._until = self._clock() + self._next_s
        self._next_s = min(self._longest_s, 2 * self._next_s)

    def succeed(self) -> None:
        """Records an answer: the next pause will be the shortest again."""
        self._next_s = self._first_s
