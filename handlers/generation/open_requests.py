"""The states of a request between its arrival and the last piece of its answer, and answers that are complete at once.

While a request waits, TorchServe gets nothing for it, because the first thing that it gets is the status."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.client import responses
from typing import Any, TypeAlias

import orjson

from marina.handlers.generation.answers import JSON, VerbatimWriter
from marina.handlers.generation.grammars import GrammarRefused, Grammars, PendingGrammar
from marina.handlers.generation.loop import EngineFailed
from marina.handlers.generation.parameters import check_model
from marina.handlers.generation.prompts import PendingPrompt, TemplateRefused
from marina.handlers.generation.refusals import RequestRefused, error_body
from marina.handlers.generation.response_format import with_options
from marina.handlers.generation.routing import ForwardedAnswer
from marina.handlers.generation.scheduler import Busy
from marina.handlers.generation.sequence import AnswerSource
from marina.handlers.generation.sessions import ConversationAnswer, ConversationStore, HistoryRead
from marina.handlers.generation.text_cache import AnswerRecording
from marina.handlers.generation.text_request import CONVERSATION_HEADER, ConversationRequest, TextRequest, UnreadRequest


@dataclass
class OpenAnswer:
    """A request whose answer is being written. `recording` collects it for the cache; `known_messages` is how many
    messages of its conversation were stored before; `has_begun` and `has_text` say whether its status and any of its
    text were sent; `is_cut` that the server stops before its end, and `is_lost` that the engine failed."""

    source: AnswerSource
    writer: VerbatimWriter
    recording: AnswerRecording | None = None
    known_messages: int | None = None
    has_begun: bool = False
    has_text: bool = False
    is_cut: bool = False
    is_lost: bool = False

    @property
    def error(self) -> "FullResponse | None":
        """Why the answer ended before it was complete; None if it did not."""
        if self.is_lost:
            return _LOST
        if self.is_cut:
            return STOPPED
        if isinstance(self.source, ConversationAnswer) and self.source.is_unkept:
            return _UNKEPT
        if self.source.end != "error":
            return None
        return _SCHEMA_FAILED if self.writer.has_schema else FAILED


@dataclass(frozen=True)
class PromptWait:
    """A request that waits until its prompt is tokens."""

    request: UnreadRequest
    awaited: PendingPrompt

    @property
    def deadline(self) -> float | None:
        return self.request.deadline

    def read(self) -> TextRequest:
        """The request with its tokens; raises RequestRefused."""
        if not self.awaited.is_ready:
            raise _late("its prompt was not read in time")
        try:
            return self.request.with_tokens(self.awaited.tokens.result())
        except TemplateRefused as err:
            raise RequestRefused(str(err), param="messages") from err


@dataclass(frozen=True)
class SchemaWait:
    """A request that waits until its schema is compiled."""

    request: TextRequest
    awaited: PendingGrammar
    recording: AnswerRecording | None

    @property
    def deadline(self) -> float | None:
        return self.request.task.deadline

    def with_grammar(self, grammars: Grammars) -> TextRequest:
        """The request with its grammar; raises RequestRefused."""
        if not self.awaited.is_ready:
            raise _late("its schema was not compiled in time")
        tasks = (self.request.task, *self.request.more)
        try:
            begun = [grammars.begin(self.awaited) for _ in tasks]
        except GrammarRefused as err:
            param = "tools" if self.request.parameters.tools else "response_format"
            raise RequestRefused(f"`{param}`: this schema cannot be enforced: {err}", param=param) from err
        schema = with_options(self.request.parameters.schema or "{}")
        first, *more = (
            replace(task, sampling=replace(task.sampling, grammar=grammar, schema=schema))
            for task, grammar in zip(tasks, begun, strict=True)
        )
        return replace(self.request, task=first, more=tuple(more))


@dataclass(frozen=True)
class RouteWait:
    """A request that waits for the first text from the small model."""

    request: TextRequest
    awaited: ForwardedAnswer
    recording: AnswerRecording | None


@dataclass(frozen=True)
class HistoryWait:
    """A request that waits until the earlier messages of its conversation are read."""

    unread: ConversationRequest
    awaited: HistoryRead


@dataclass(frozen=True)
class FullResponse:
    """A response that is complete at once."""

    body: bytes
    status: int = 200
    retry_after_s: int | None = None


Waiting: TypeAlias = HistoryWait | PromptWait | SchemaWait | RouteWait
OpenRequest: TypeAlias = OpenAnswer | Waiting


def _late(message: str) -> RequestRefused:
    return RequestRefused(message, code="busy", status=503, retry_after_s=1)


def _failure(message: str, code: str, status: int = 503) -> FullResponse:
    return FullResponse(error_body(message, status, code=code), status, 1 if status == 503 else None)


_ENGINE_FAILED = "the engine failed and is being restarted"
_LOST = _failure(_ENGINE_FAILED, "engine_failed")
STOPPED = _failure("the server stopped before the answer was complete", "server_stopped")
FAILED = _failure("the server could not complete this answer", "internal", 500)
_SCHEMA_TEXT = "this answer could not be completed: its schema may take too much to enforce, so try a simpler one"
_SCHEMA_FAILED = _failure(_SCHEMA_TEXT, "internal", 500)
_UNKEPT_TEXT = "the answer is complete, but its conversation was not stored: the next turn will not know of it"
_UNKEPT = _failure(_UNKEPT_TEXT, "conversation_not_kept")
# On an answer in a conversation: how many of its messages were stored before.
KNOWN_MESSAGES_HEADER = f"{CONVERSATION_HEADER}-Messages"


@contextmanager
def refusing_if_busy() -> Iterator[None]:
    """Turns EngineFailed and Busy into RequestRefused, an answer with status 503."""
    try:
        yield
    except EngineFailed as err:
        raise RequestRefused(_ENGINE_FAILED, code="engine_failed", status=503, retry_after_s=1) from err
    except Busy as err:
        raise RequestRefused(err.reason, code="busy", status=503, retry_after_s=err.retry_after_s) from err


def wait_for_history(request: ConversationRequest, store: ConversationStore | None) -> HistoryWait:
    """Starts to read the conversation; RequestRefused if this server has no store of conversations."""
    if store is None:
        text = f"this server stores no conversations: send all messages, without `{CONVERSATION_HEADER}`"
        raise RequestRefused(text, param=CONVERSATION_HEADER, code="unsupported_parameter")
    return HistoryWait(request, HistoryRead(store, request.conversation, request.messages))


class FlushPace:
    """When text of running answers is sent: once in `every_s`.

    A flush that came late does not delay the later ones, or else every delay would last until two tokens come at
    once. A flush that came early, because an answer began or ended, does not delay them by more than `every_s`, or
    else many short answers would hold up the long ones."""

    def __init__(self, every_s: float) -> None:
        self._every_s, self._due = every_s, 0.0

    def wait_s(self, now: float) -> float:
        return max(0.0, self._due - now)

    def flush(self, now: float) -> None:
        """Records that text is sent now."""
        self._due = min(max(self._due, now - self._every_s), now) + self._every_s


def describe_models(name: str, served: str) -> FullResponse:
    """OpenAI's list of models, which has one, or that model by its name."""
    check_model(name or served, served)
    model = {"id": served, "object": "model", "created": 0, "owned_by": "marina"}
    return FullResponse(orjson.dumps(model if name else {"object": "list", "data": [model]}))


def set_response(response: FullResponse, index: int, context: Any) -> bytes:
    """Sets status and headers of row `index` in TorchServe's context; returns the body."""
    context.set_response_content_type(index, JSON)
    if response.status != 200:
        context.set_response_status(response.status, responses.get(response.status, ""), index)
    if response.retry_after_s is not None:
        context.set_response_header(index, "retry-after", str(response.retry_after_s))
    return response.body
