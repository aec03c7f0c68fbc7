"""The messages between leader and workers, over Locust's connection and beside Locust's own messages.

A worker reports that it is HERE, gets its PLAN, and reports that its user is WAITING. The leader asks for its CLOCK a
few times, and names a moment on it to START. Then the worker reports every SECOND, and at the end what it MEASURED, or
why it FAILED. STOP ends its load early."""

from collections.abc import Callable
from typing import Any

from locust.runners import DistributedRunner

HERE, PLAN, WAITING, CLOCK, START, SECOND, STOP, MEASURED, FAILED = (
    f"marina_{name}" for name in ("here", "plan", "waiting", "clock", "start", "second", "stop", "measured", "failed")
)


def listen(runner: DistributedRunner, name: str, answer: Callable[[dict[str, Any]], None]) -> None:
    """Calls `answer` with the data of each message of this name, in the order in which they arrive."""

    def on_message(environment: Any, msg: Any) -> None:
        del environment
        answer(msg.data)

    runner.register_message(name, on_message)
