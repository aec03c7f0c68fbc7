"""A request as it arrives: its body, its path and its headers, read into what is asked for."""

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from handlers.caching import CacheControl, parse_cache_control
from handlers.generation.refusals import Refused, named
from handlers.generation.sequence import BATCH, INTERACTIVE, Wish
from handlers.generation.sessions import Message, Turn
from handlers.generation.tokens import Tokens
from handlers.generation.wishes import Asked, Form, Limits, read_asked, read_messages
from handlers.protocols import HEADER as PROTOCOL
from handlers.request import Request
from handlers.validation import RequestError

_ROUTES: dict[str, Form] = {"v1/completions": "completion", "v1/chat/completions": "chat"}
_PAGES = ", ".join((*_ROUTES, "v1/models"))
_PRIORITIES = {"interactive": INTERACTIVE, "batch": BATCH}
# Set where a request is sent on, so that none goes in a circle; who sets it is answered by the model that it asked.
ROUTED = "X-Marina-Routed"
CONVERSATION = "X-Conversation"
_CONVERSATION = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_MAX_VALUES = 2_000_000
# Of bodies; a client that names none means JSON, and so does one that says no more than that it sends bytes.
_TYPES = ("", "application/json", "application/octet-stream")


@dataclass(frozen=True)
class Arrival:
    """A request as it was read: what the engine is to do, what the client is told, what it says of the cache; its body,
    whether another server has sent it on, and the turn of a kept conversation that it is."""

    wish: Wish
    asked: Asked
    control: CacheControl
    body: Mapping[str, Any]
    is_routed: bool
    turn: Turn | None = None


@dataclass(frozen=True)
class Continued:
    """A request that names its conversation: `read` makes an arrival of it when what was said before is known."""

    conversation: str
    messages: list[Message]
    read: Callable[[Turn], Arrival]


class Arrivals:
    """Reads requests for one model; `priority` is the header that says who goes first."""

    def __init__(self, tokens: Tokens, limits: Limits, max_bytes: int, priority: str) -> None:
        self._tokens, self._limits, self._max_bytes, self._priority = tokens, limits, max_bytes, priority

    def read(
        self, row: Mapping[str, Any], headers: Mapping[str, Any], request_id: str, path: str
    ) -> Arrival | Continued:
        """The request, or Refused."""
        if path and path not in _ROUTES:
            raise Refused(f"no such page, allowed: {_PAGES}", status=404)
        try:
            request = Request(row, headers, request_id=request_id, max_bytes=self._max_bytes, max_values=_MAX_VALUES)
            if (protocol := request.door_header(PROTOCOL)) is not None:
                text = f"this model writes text and has no KServe {protocol.upper()}, allowed: {_PAGES}"
                raise Refused(text, status=404)
            _check_headers(request)
            body = request.json()
        except RequestError as err:
            text = ": ".join(str(part) for part in (err.details["error"], err.details["got"]) if part is not None)
            raise Refused(text, status=err.status) from err
        _check_names_once(request)
        in_body: Form = "chat" if isinstance(body, Mapping) and "messages" in body else "completion"
        form = _ROUTES.get(path, in_body)
        conversation = request.headers.get(CONVERSATION)
        if conversation is None:
            return self._arrival(request, request_id, form, body)
        if form != "chat":
            raise Refused(f"`{CONVERSATION}` is for v1/chat/completions", param=CONVERSATION)
        if not _CONVERSATION.fullmatch(conversation):
            text = f"`{CONVERSATION}`: allowed: 1 to 128 letters, digits, `.`, `_`, `:` and `-`"
            raise Refused(text, param=CONVERSATION)
        messages = read_messages(body.get("messages") if isinstance(body, Mapping) else None)
        return Continued(conversation, messages, partial(self._arrival, request, request_id, form, body))

    def _arrival(
        self, request: Request, request_id: str, form: Form, body: object, turn: Turn | None = None
    ) -> Arrival:
        if turn is not None and isinstance(body, Mapping):
            body = {**body, "messages": list(turn.messages)}
        asked = read_asked(body, form, self._tokens, self._limits)
        wish = Wish(
            request_id,
            asked.prompt,
            asked.max_tokens,
            asked.sampling,
            asked.stop,
            _priority(self._priority, request.headers.get(self._priority)),
            _deadline(request.headers.get("x-request-timeout-ms")),
        )
        routed = request.headers.get(ROUTED) is not None
        return Arrival(
            wish, asked, parse_cache_control(request.headers), body if isinstance(body, Mapping) else {}, routed, turn
        )


def _check_headers(request: Request) -> None:
    """Nothing is unpacked here, and no other kind of body is taken for JSON."""
    if (coding := request.headers.get("content-encoding", "identity").strip().lower()) not in ("", "identity"):
        text = f"`Content-Encoding`: got {named(coding)}, allowed: a body that is not compressed"
        raise Refused(text, param="Content-Encoding", status=415)
    if (kind := request.content_type) not in _TYPES:
        text = f"`Content-Type`: got {named(kind)}, allowed: `application/json`"
        raise Refused(text, param="Content-Type", status=415)


class _Twice(Exception):
    """A name that is twice in one object."""


def _check_names_once(request: Request) -> None:
    """Of two values for one name a parser takes either, so nobody knows which one was meant."""
    if request.is_decoded:
        return
    try:
        # Numbers were read before, and one of many digits takes long.
        json.loads(request.body, object_pairs_hook=_once, parse_int=str, parse_float=str)
    except _Twice as err:
        (name,) = err.args
        raise Refused(f"the name {named(name)} is twice in one object, allowed: once", param=name[:80]) from err
    except RecursionError as err:
        raise Refused("the body is nested too deeply") from err


def _once(pairs: list[tuple[str, object]]) -> None:
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise _Twice(name)
        seen.add(name)


def _priority(header: str, text: str | None) -> int:
    if text is None:
        return INTERACTIVE
    if text not in _PRIORITIES:
        raise Refused(f"`{header}`: got {named(text)}, allowed: `batch`, `interactive`", param=header)
    return _PRIORITIES[text]


def _deadline(text: str | None) -> float | None:
    """When the answer is of no more use, on the loop's clock."""
    if text is None:
        return None
    if not (text.isdecimal() and len(text) <= 10 and 1 <= int(text) <= 86_400_000):
        name = "X-Request-Timeout-Ms"
        raise Refused(f"`{name}`: got {named(text)}, allowed: 1 to 86400000", param=name)
    return time.monotonic() + int(text) / 1000
