"""A request's body, path and headers, read and checked."""

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from marina.handlers.caching import CacheControl, parse_cache_control
from marina.handlers.generation.messages import read_messages
from marina.handlers.generation.parameters import Endpoint, Limits, Parameters, read_parameters
from marina.handlers.generation.prompts import Conversation
from marina.handlers.generation.refusals import RequestRefused, quote_choice
from marina.handlers.generation.sequence import BATCH, INTERACTIVE, GenerationTask
from marina.handlers.generation.sessions import ChatMessage, ConversationTurn
from marina.handlers.protocols import HEADER as PROTOCOL
from marina.handlers.request import Request
from marina.handlers.validation import RequestError

_ROUTES: dict[str, Endpoint] = {"v1/completions": "completion", "v1/chat/completions": "chat"}
_PAGES = ", ".join((*_ROUTES, "v1/models"))
_PRIORITIES = {"interactive": INTERACTIVE, "batch": BATCH}
# Set on a request that is sent on to another model, so that none goes in a circle: the receiver answers it itself.
ROUTED_HEADER = "X-Marina-Routed"
# Says how urgent a request is: `interactive`, or `batch`, which waits while an interactive one waits.
PRIORITY_HEADER = "X-Priority"
CONVERSATION_HEADER = "X-Conversation"
_CONVERSATION = re.compile(r"[A-Za-z0-9._:-]{1,128}")
# What a body may have beside its prompt, and what the prompt may have for each of its tokens: values of JSON, also the
# commas of a text, and bytes for each character. All that is more would be read in vain, and every stream would wait.
_OTHER_BYTES, _OTHER_VALUES = 1_000_000, 20_000
_BYTES_PER_CHARACTER, _VALUES_PER_TOKEN = 6, 4
# Content types that are read as JSON: also none at all, and plain bytes, which some clients send by default.
_TYPES = ("", "application/json", "application/octet-stream")


@dataclass(frozen=True)
class TextRequest:
    """A checked request: the engine's task, OpenAI's parameters, what its headers say about the cache, its body as it
    was sent, whether another model has sent it on, its turn in a stored conversation, and the tasks of `more` answers
    to it."""

    task: GenerationTask
    parameters: Parameters
    control: CacheControl
    body: Mapping[str, Any]
    is_routed: bool
    turn: ConversationTurn | None = None
    more: tuple[GenerationTask, ...] = ()

    @property
    def is_shared(self) -> bool:
        """Whether its answer may come from the cache, or from another model."""
        return not self.more and not self.parameters.echo


@dataclass(frozen=True)
class UnreadRequest:
    """A request whose prompt is not tokens yet; `with_tokens` makes a TextRequest of it."""

    prompt: str | list[str] | Conversation
    deadline: float | None
    with_tokens: Callable[[Sequence[int]], TextRequest]


@dataclass(frozen=True)
class ConversationRequest:
    """A request in a stored conversation, with its own messages; `read` goes on when the history is known."""

    conversation: str
    messages: list[ChatMessage]
    read: Callable[[ConversationTurn], TextRequest | UnreadRequest]


class RequestReader:
    """Reads requests for one model."""

    def __init__(self, limits: Limits, max_bytes: int) -> None:
        self._limits, self._max_bytes = limits, max_bytes
        self._body_bytes = _OTHER_BYTES + _BYTES_PER_CHARACTER * limits.tokenizer.longest * limits.context
        self._max_values = _OTHER_VALUES + _VALUES_PER_TOKEN * limits.context

    def read(
        self, row: Mapping[str, Any], headers: Mapping[str, Any], request_id: str, path: str
    ) -> TextRequest | UnreadRequest | ConversationRequest:
        """Raises RequestRefused if anything in the request is wrong."""
        arrived = time.monotonic()
        if path and path not in _ROUTES:
            raise RequestRefused(f"no such page, allowed: {_PAGES}", status=404)
        try:
            request = Request(
                row, headers, request_id=request_id, max_bytes=self._max_bytes, max_values=self._max_values
            )
            if (protocol := request.door_header(PROTOCOL)) is not None:
                text = f"this model writes text and has no KServe {protocol.upper()}, allowed: {_PAGES}"
                raise RequestRefused(text, status=404)
            _check_headers(request)
            self._check_length(request)
            body = request.json()
        except RequestError as err:
            error, got, allowed = (err.details[name] for name in ("error", "got", "allowed"))
            text = error if got is None else f"{error}: {got}"
            text = text if allowed is None else f"{text}, allowed: {allowed}"
            raise RequestRefused(text, status=err.status) from err
        _check_names_once(request)
        by_body: Endpoint = "chat" if isinstance(body, Mapping) and "messages" in body else "completion"
        endpoint = _ROUTES.get(path, by_body)
        conversation = request.headers.get(CONVERSATION_HEADER)
        if conversation is None:
            return self._read(request, arrived, endpoint, body)
        if endpoint != "chat":
            raise RequestRefused(f"`{CONVERSATION_HEADER}` is for v1/chat/completions", param=CONVERSATION_HEADER)
        if not _CONVERSATION.fullmatch(conversation):
            text = f"`{CONVERSATION_HEADER}`: allowed: 1 to 128 letters, digits, `.`, `_`, `:` and `-`"
            raise RequestRefused(text, param=CONVERSATION_HEADER)
        messages = read_messages(body.get("messages") if isinstance(body, Mapping) else None)
        read = partial(self._read, request, arrived, endpoint, body)
        return ConversationRequest(conversation, messages, read)

    def _check_length(self, request: Request) -> None:
        if (length := len(request.body)) > self._body_bytes:
            most = f"at most {self._body_bytes}, which is more than {self._limits.context} tokens take"
            text = f"the body has {length} bytes, allowed: {most}"
            raise RequestRefused(text, code="context_length_exceeded", status=413)

    def _read(
        self, request: Request, arrived: float, endpoint: Endpoint, body: object, turn: ConversationTurn | None = None
    ) -> TextRequest | UnreadRequest:
        if turn is not None and isinstance(body, Mapping):
            body = {**body, "messages": list(turn.messages)}
        prompt, with_prompt = read_parameters(body, endpoint, self._limits)
        if turn is not None and isinstance(body, Mapping) and body.get("n") not in (None, 1):
            raise RequestRefused(f"`n` is not supported with `{CONVERSATION_HEADER}`: allowed: `1`", param="n")
        priority = _read_priority(request.headers.get(PRIORITY_HEADER))
        deadline = _read_deadline(request.headers.get("x-request-timeout-ms"), arrived)

        def with_tokens(tokens: Sequence[Any]) -> TextRequest:
            several = [with_prompt(each) for each in (tokens if isinstance(prompt, list) else [tokens])]
            given = replace(several[0], prompts=tuple(each.prompt for each in several[1:] and several))
            control, is_routed = parse_cache_control(request.headers), request.headers.get(ROUTED_HEADER) is not None
            tasks: list[GenerationTask] = []
            for each, choice in ((each, choice) for each in several for choice in range(given.choices)):
                seed = each.sampling.seed
                sampling = replace(each.sampling, seed=None if seed is None else seed + choice)
                name = f"{request.id}-{len(tasks)}" if tasks else request.id
                wanted = (each.prompt, each.max_tokens, sampling, each.stop)
                tasks.append(GenerationTask(name, *wanted, priority, deadline, arrived, each.marks))
            sent = body if isinstance(body, Mapping) else {}
            return TextRequest(tasks[0], given, control, sent, is_routed, turn, tuple(tasks[1:]))

        if isinstance(prompt, tuple) or (isinstance(prompt, list) and isinstance(prompt[0], tuple)):
            return with_tokens(prompt)
        return UnreadRequest(prompt, deadline, with_tokens)


def _check_headers(request: Request) -> None:
    """Refuses compressed bodies, and bodies of other types than JSON."""
    if (coding := request.headers.get("content-encoding", "identity").strip().lower()) not in ("", "identity"):
        text = f"`Content-Encoding`: got {quote_choice(coding)}, allowed: a body that is not compressed"
        raise RequestRefused(text, param="Content-Encoding", status=415)
    if (kind := request.content_type) not in _TYPES:
        text = f"`Content-Type`: got {quote_choice(kind)}, allowed: `application/json`"
        raise RequestRefused(text, param="Content-Type", status=415)


class _DuplicateName(Exception):
    """An object of the body has a name twice."""


def _check_names_once(request: Request) -> None:
    """Refuses a name that occurs twice in one object: some parsers take its first value, some its last."""
    if request.is_decoded:
        return
    try:
        # Numbers stay text, because to parse one of very many digits takes long.
        json.loads(request.body, object_pairs_hook=_reject_duplicates, parse_int=str, parse_float=str)
    except _DuplicateName as err:
        (name,) = err.args
        raise RequestRefused(
            f"the name {quote_choice(name)} occurs twice in one object, allowed: once", param=name[:80]
        ) from err
    except RecursionError as err:
        raise RequestRefused("the body is nested too deeply") from err


def _reject_duplicates(pairs: list[tuple[str, object]]) -> None:
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise _DuplicateName(name)
        seen.add(name)


def _read_priority(text: str | None) -> int:
    if text is None:
        return INTERACTIVE
    if text not in _PRIORITIES:
        raise RequestRefused(
            f"`{PRIORITY_HEADER}`: got {quote_choice(text)}, allowed: `batch`, `interactive`", param=PRIORITY_HEADER
        )
    return _PRIORITIES[text]


def _read_deadline(text: str | None, arrived: float) -> float | None:
    """When the answer has to be complete, as a time of `time.monotonic`; None without the header."""
    if text is None:
        return None
    if not (text.isdecimal() and len(text) <= 10 and 1 <= int(text) <= 86_400_000):
        name = "X-Request-Timeout-Ms"
        raise RequestRefused(f"`{name}`: got {quote_choice(text)}, allowed: 1 to 86400000", param=name)
    return arrived + int(text) / 1000
