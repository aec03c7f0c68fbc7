"""What a request is while it is open, and how an answer that is there at once is given to TorchServe."""

from dataclasses import dataclass
from http.client import responses
from typing import Any

from handlers.generation.answers import JSON, Verbatim
from handlers.generation.arrivals import Arrival
from handlers.generation.forwarded import Forwarded
from handlers.generation.grammars import Compiling
from handlers.generation.recall import Keeping
from handlers.generation.refusals import error_body
from handlers.generation.sequence import Answering


@dataclass
class Stream:
    """An open request: its answer in the making, what keeps it, and whether something of it was sent."""

    answering: Answering
    writer: Verbatim
    keeping: Keeping | None = None
    begun: bool = False
    has_text: bool = False
    is_cut: bool = False
    is_lost: bool = False


@dataclass(frozen=True)
class Pending:
    """A request whose answer begins when its schema is compiled. TorchServe hears nothing of it before: what it hears
    first is the status."""

    arrival: Arrival
    awaited: Compiling
    keeping: Keeping | None


@dataclass(frozen=True)
class Routed:
    """A request whose answer another server was asked for, and has not begun; TorchServe hears nothing of it before."""

    arrival: Arrival
    awaited: Forwarded
    keeping: Keeping | None


@dataclass(frozen=True)
class Whole:
    """An answer that is there at once."""

    body: bytes
    status: int = 200
    retry_after_s: int | None = None


LOST = "the engine failed, and another one starts"
_STOPS = "the server stops, and the answer was not complete in the time that it had"
STOPPED = Whole(error_body(_STOPS, 503, code="server_stopped"), 503, retry_after_s=1)


class Pace:
    """Text that goes on is sent once in `every_s`. What was sent late does not delay what comes after it, or else every
    delay would stay until two tokens come at once."""

    def __init__(self, every_s: float) -> None:
        self._every_s, self._due = every_s, 0.0

    def wait_s(self, now: float) -> float:
        return max(0.0, self._due - now)

    def flush(self, now: float) -> None:
        self._due = max(self._due, now - self._every_s) + self._every_s


@dataclass(frozen=True)
class Criterion:
    """What TorchServe asks whether an answer has ended; None where it is not in pieces."""

    is_last: bool | None

    def __call__(self, answer: object) -> bool | None:
        return self.is_last


def send(whole: Whole, index: int, context: Any) -> bytes:
    """Its body; its status and headers go into the context."""
    context.set_response_content_type(index, JSON)
    if whole.status != 200:
        context.set_response_status(whole.status, responses.get(whole.status, ""), index)
    if whole.retry_after_s is not None:
        context.set_response_header(index, "retry-after", str(whole.retry_after_s))
    return whole.body
