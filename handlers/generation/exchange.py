"""What a request is while it is open, and how an answer that is there at once is given to TorchServe."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import responses
from typing import Any, TypeAlias

from handlers.generation.answers import JSON, Verbatim
from handlers.generation.arrivals import CONVERSATION, Arrival, Continued
from handlers.generation.forwarded import Forwarded
from handlers.generation.grammars import Compiling
from handlers.generation.loop import EngineFailed
from handlers.generation.recall import Keeping
from handlers.generation.refusals import Refused, error_body
from handlers.generation.scheduler import Busy
from handlers.generation.sequence import Answering
from handlers.generation.sessions import Recalled, Remembered, Sessions


@dataclass
class Stream:
    """An open request: the answer that is being written, what keeps it, how many messages of its conversation were
    known before, and whether something of it was sent."""

    answering: Answering
    writer: Verbatim
    keeping: Keeping | None = None
    recalled: int | None = None
    begun: bool = False
    has_text: bool = False
    is_cut: bool = False
    is_lost: bool = False

    @property
    def error(self) -> "Whole | None":
        """Why an answer ended before it was complete."""
        if self.is_lost:
            return Whole(error_body(LOST, 503, code="engine_failed"), 503, retry_after_s=1)
        if self.is_cut:
            return STOPPED
        if isinstance(self.answering, Remembered) and self.answering.is_unkept:
            return _UNKEPT
        return FAILED if self.answering.end == "error" else None


@dataclass(frozen=True)
class Pending:
    """A request whose answer begins when its schema is compiled. TorchServe is told nothing before, because the first
    thing that it is told is the status."""

    arrival: Arrival
    awaited: Compiling
    keeping: Keeping | None


@dataclass(frozen=True)
class Routed:
    """A request whose answer another server was asked for, and has not begun; TorchServe is told nothing before."""

    arrival: Arrival
    awaited: Forwarded
    keeping: Keeping | None


@dataclass(frozen=True)
class Recalling:
    """A request that goes on with a conversation, which is being read."""

    continued: Continued
    awaited: Recalled


@dataclass(frozen=True)
class Whole:
    """An answer that is there at once."""

    body: bytes
    status: int = 200
    retry_after_s: int | None = None


Open: TypeAlias = Stream | Pending | Routed | Recalling
LOST = "the engine failed and is started again"
_STOPS = "the server stopped before the answer was complete"
STOPPED = Whole(error_body(_STOPS, 503, code="server_stopped"), 503, retry_after_s=1)
FAILED = Whole(error_body("the server failed at this answer", 500, code="internal"), 500)
_UNKEPT_TEXT = "the answer is complete, but its conversation was not stored: the next turn will not know of it"
_UNKEPT = Whole(error_body(_UNKEPT_TEXT, 503, code="conversation_not_kept"), 503, retry_after_s=1)
# Of an answer in a conversation: how many messages were known before.
RECALLED = f"{CONVERSATION}-Messages"


@contextmanager
def refusing() -> Iterator[None]:
    """What cannot begin now is an answer to its client."""
    try:
        yield
    except EngineFailed as err:
        raise Refused(LOST, code="engine_failed", status=503, retry_after_s=1) from err
    except Busy as err:
        raise Refused(err.reason, code="busy", status=503, retry_after_s=err.retry_after_s) from err


def recalling(continued: Continued, sessions: Sessions | None) -> Recalling:
    """Begins to read a conversation, or Refused where none is kept."""
    if sessions is None:
        text = f"this server keeps no conversations: send all messages, without `{CONVERSATION}`"
        raise Refused(text, param=CONVERSATION, code="unsupported_parameter")
    return Recalling(continued, Recalled(sessions, continued.conversation, continued.messages))


class Pace:
    """Text that goes on is sent once in `every_s`. What was sent late does not delay what comes after it, or else every
    delay would stay until two tokens come at once; and what was sent early, because an answer began or ended, does not
    delay it further, or else many short answers would stop the long ones."""

    def __init__(self, every_s: float) -> None:
        self._every_s, self._due = every_s, 0.0

    def wait_s(self, now: float) -> float:
        return max(0.0, self._due - now)

    def flush(self, now: float) -> None:
        self._due = min(max(self._due, now - self._every_s), now) + self._every_s


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
