"""Which request gets the next free slot, and which is refused at once because waiting is useless.

Interactive requests go before those of a batch, short prompts before long ones; who has waited long goes before all of
them, so that nobody waits for ever. Estimates are made of the steps measured so far: what was never measured refuses
nobody."""

import math
from collections.abc import Sequence

from handlers.generation.sequence import INTERACTIVE, Wish

# Who has waited so long is next.
PATIENCE_S = 10.0
# Of the newest step in the running mean.
_NEWEST = 0.1


class Busy(Exception):
    """Waiting is useless: `retry_after_s` is when there may be room."""

    def __init__(self, reason: str, retry_after_s: float) -> None:
        super().__init__(reason)
        self.reason, self.retry_after_s = reason, max(1, math.ceil(retry_after_s))


class StepTime:
    """What a step takes, as a running mean, seconds; 0 before the first."""

    def __init__(self) -> None:
        self.mean_s = 0.0

    def observe(self, seconds: float) -> None:
        self.mean_s = seconds if self.mean_s == 0 else self.mean_s + _NEWEST * (seconds - self.mean_s)


class Scheduler:
    """The wishes that wait for a slot, at most `room`."""

    def __init__(self, *, room: int, slots: int, prefill_chunk: int) -> None:
        self._room, self._slots, self._chunk = room, slots, prefill_chunk
        self._waiting: dict[str, tuple[Wish, float]] = {}
        self.step = StepTime()

    def __len__(self) -> int:
        return len(self._waiting)

    def submit(self, wish: Wish, now: float, *, running: Sequence[int]) -> None:
        """Takes a wish in, or raises Busy; `running` is how many tokens each sequence in a slot may still get."""
        wait_s = self._wait_s(running, wish.priority)
        # Who waits for the moment in which a free slot is given away is in nobody's way.
        waiting = len(self._waiting) - (self._slots - len(running))
        # A batch that took all the room would have interactive requests refused.
        room = self._room if wish.priority == INTERACTIVE else max(1, self._room // 2)
        if waiting >= room:
            raise Busy(f"{waiting} requests are already waiting", wait_s)
        if wish.deadline is not None:
            end_s = wait_s + self._own_s(wish)
            if now + end_s > wish.deadline:
                left_ms = max(0.0, wish.deadline - now) * 1000
                raise Busy(f"it would take {end_s * 1000:,.1f} ms, and {left_ms:,.1f} ms are left", wait_s)
        self._waiting[wish.id] = (wish, now)

    def take(self, now: float) -> Wish | None:
        """The next to get a slot."""
        if not self._waiting:
            return None
        wish, _ = min(self._waiting.values(), key=lambda waiting: _turn(waiting[0], waiting[1], now))
        del self._waiting[wish.id]
        return wish

    def cancel(self, wish: str) -> bool:
        """Whether it was waiting."""
        return self._waiting.pop(wish, None) is not None

    def _wait_s(self, running: Sequence[int], priority: int) -> float:
        """Until a slot is free for one more of a priority, seconds: the slots are freed as those who hold them end."""
        frees = sorted([0] * (self._slots - len(running)) + sorted(running)[: self._slots])
        for wish in (wish for wish, _ in self._waiting.values() if wish.priority <= priority):
            frees.append(frees.pop(0) + self._steps(wish))
            frees.sort()
        return frees[0] * self.step.mean_s if frees else 0.0

    def _own_s(self, wish: Wish) -> float:
        return self._steps(wish) * self.step.mean_s

    def _steps(self, wish: Wish) -> int:
        return math.ceil(len(wish.prompt) / self._chunk) + wish.max_tokens - 1


def _turn(wish: Wish, since: float, now: float) -> tuple[int, float, float]:
    if now - since > PATIENCE_S:
        return -1, since, 0.0
    return wish.priority, len(wish.prompt), since
