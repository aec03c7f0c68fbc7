"""Which request gets the next free slot, and which one is refused at once because waiting would be useless.

Interactive requests go before batch requests, and short prompts before long ones. A request that has waited for
`PATIENCE_S` goes before all others, so that none waits for ever. Estimates use the mean time of the steps so far; until
one was measured, no request is refused for its deadline."""

import math
from collections.abc import Sequence

from marina.handlers.generation.sequence import INTERACTIVE, GenerationTask

# A request that has waited this long is next.
PATIENCE_S = 10.0
# The weight of the newest step in the running mean.
_NEWEST = 0.1


class Busy(Exception):
    """Waiting would be useless; there may be room in `retry_after_s`."""

    def __init__(self, reason: str, retry_after_s: float) -> None:
        super().__init__(reason)
        self.reason, self.retry_after_s = reason, max(1, math.ceil(retry_after_s))


class Scheduler:
    """The tasks that wait for a slot, at most `room`."""

    def __init__(self, *, room: int, slots: int, prefill_chunk: int) -> None:
        self._room, self._slots, self._chunk = room, slots, prefill_chunk
        self._waiting: dict[str, tuple[GenerationTask, float]] = {}
        # The running mean of the time of a step; 0 before the first step.
        self._step_s = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def observe_step(self, seconds: float) -> None:
        """Takes the time of one step into account for estimates."""
        self._step_s = seconds if self._step_s == 0 else self._step_s + _NEWEST * (seconds - self._step_s)

    def submit(self, task: GenerationTask, now: float, *, running: Sequence[int]) -> None:
        """Lets a task wait, or raises Busy. `running` is how many tokens each sequence in a slot may still get."""
        wait_s = self._wait_s(running, task.priority)
        # Free slots are filled before the next step, so that many of the waiting tasks take no room.
        waiting = len(self._waiting) - (self._slots - len(running))
        # Batch requests must not take all the room, or interactive ones would be refused.
        room = self._room if task.priority == INTERACTIVE else max(1, self._room // 2)
        if waiting >= room and not task.follows:
            raise Busy(f"{waiting} requests are already waiting", wait_s)
        if task.deadline is not None:
            end_s = wait_s + self._steps(task) * self._step_s
            if now + end_s > task.deadline:
                left_ms = max(0.0, task.deadline - now) * 1000
                raise Busy(f"it would take {end_s * 1000:,.1f} ms, and {left_ms:,.1f} ms are left", wait_s)
        self._waiting[task.id] = (task, now)

    def take(self, now: float) -> GenerationTask | None:
        """Removes and returns the task that gets the next slot; None if none waits."""
        if not self._waiting:
            return None
        task, _ = min(self._waiting.values(), key=lambda waiting: _rank(waiting[0], waiting[1], now))
        del self._waiting[task.id]
        return task

    def cancel(self, task_id: str) -> None:
        """Removes a task if it is waiting."""
        self._waiting.pop(task_id, None)

    def _wait_s(self, running: Sequence[int], priority: int) -> float:
        """Seconds until a slot is free for one more task of this priority, after those that go before it."""
        frees = sorted([0] * (self._slots - len(running)) + sorted(running)[: self._slots])
        for task in (task for task, _ in self._waiting.values() if task.priority <= priority):
            frees.append(frees.pop(0) + self._steps(task))
            frees.sort()
        return frees[0] * self._step_s if frees else 0.0

    def _steps(self, task: GenerationTask) -> int:
        return math.ceil(len(task.prompt) / self._chunk) + task.max_tokens - 1


def _rank(task: GenerationTask, since: float, now: float) -> tuple[int, float, float]:
    if now - since > PATIENCE_S:
        return -1, since, 0.0
    return task.priority, len(task.prompt), since
