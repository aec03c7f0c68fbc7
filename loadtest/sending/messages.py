"""What leader and workers tell each other over Locust's connection, beside Locust's own messages.

A worker says that it is here, is given its plan, and says that its user waits. The leader asks its clock a few times,
and names a moment on it. Then the worker tells every second, and at the end what it measured, or why it failed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from locust.runners import DistributedRunner

HERE, PLAN, WAITING, CLOCK, START, SECOND, STOP, MEASURED, FAILED = (
    f"marina_{name}" for name in ("here", "plan", "waiting", "clock", "start", "second", "stop", "measured", "failed")
)


def listen(runner: DistributedRunner, name: str, answer: Callable[[dict[str, Any]], None]) -> None:
    """Calls `answer` with the data of each such message, in the order in which they come."""

    def on_message(environment: Any, msg: Any) -> None:
        del environment
        answer(msg.data)

    runner.register_message(name, on_message)
