"""Short prompts go to a small model, as long as it answers. A thread reads its answer and passes it on unchanged, in
whole events.

Nothing is passed on before its first text has come: until then this server can write the answer instead, and the client
notices nothing. The supervisor sets `MARINA_ROUTE` from the spec's `text.route`."""

import http.client
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

import orjson
from prometheus_client import CollectorRegistry, Counter

from marina.handlers.caching import Backoff
from marina.handlers.generation.loop import EngineLoop
from marina.handlers.generation.parameters import UNUSED_TEXTS
from marina.handlers.generation.sequence import BATCH, End, Piece
from marina.handlers.generation.text_request import PRIORITY_HEADER, ROUTED_HEADER, TextRequest
from marina.handlers.record import DEFAULT_MAX_RESPONSE_BYTES
from marina.handlers.tracing import HEADER as TRACE

logger = logging.getLogger(__name__)

SETTINGS = "MARINA_ROUTE"
_RESULTS = ("forwarded", "returned", "broken", "cancelled", "skipped")
# Not sent on: the small model has another name, and the others are not used, and may be nested too deeply for orjson.
_NOT_SENT = ("model", "metadata", *UNUSED_TEXTS)
# How long its first text may take; after that this model answers.
PATIENCE_S = 2.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 15.0


Result = Literal["forwarded", "returned", "broken", "cancelled"]
_DONE = b"data: [DONE]"
# What the first text of a chat may be.
_WRITTEN = ("content", "reasoning_content", "tool_calls")
# The longest time between two pieces of an answer that has begun.
_GAP_S = 30.0


class NotAnswered(Exception):
    """The other server was reached, but does not write this answer."""


@dataclass(frozen=True)
class ForwardedRequest:
    """What is sent to the other server. `patience_s` is how long its first text may take."""

    url: str
    body: bytes
    headers: Mapping[str, str]
    stream: bool
    patience_s: float


class ForwardedAnswer:
    """The answer to a forwarded request, an `AnswerSource`.

    `ended` is called with the result and whether the other server could be reached. The loop is woken whenever there is
    something to take, and tells whether all clients have left."""

    def __init__(self, request: ForwardedRequest, loop: EngineLoop, *, ended: Callable[[Result, bool], None]) -> None:
        self._request, self._loop, self._ended = request, loop, ended
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._is_cancelled = False
        self._ready: list[Piece] = []
        self.end: End | None = None
        # Its first text has come; or none has and none will.
        self.has_begun = self.has_failed = False
        threading.Thread(target=self._run, name="forwarded", daemon=True).start()

    @property
    def is_ready(self) -> bool:
        return bool(self._ready) or self.has_failed

    def take(self) -> list[Piece]:
        with self._lock:
            ready, self._ready = self._ready, []
            return ready

    def cancel(self) -> None:
        """Its client has left: closes the connection to the other server, or never opens it."""
        with self._lock:
            self._is_cancelled = True
            if self._socket is not None:
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        deadline = time.monotonic() + self._request.patience_s
        try:
            connection = _connection(self._request)
            try:
                connection.connect()
                self._register(connection.sock)
                connection.request(
                    "POST", urlsplit(self._request.url).path, self._request.body, dict(self._request.headers)
                )
                self._read(connection.getresponse(), deadline)
            finally:
                connection.close()
        except NotAnswered:
            self._finish("error", reached=True)
        except (OSError, ValueError, http.client.HTTPException):
            self._finish("error", reached=False)
        else:
            self._finish("stop", reached=True)

    def _register(self, connected: socket.socket) -> None:
        """Lets `cancel` close this connection. If the client has already left, the request is not sent."""
        with self._lock:
            if self._is_cancelled:
                raise NotAnswered
            self._socket = connected

    def _read(self, response: http.client.HTTPResponse, deadline: float) -> None:
        if response.status != 200:
            raise NotAnswered
        held = b""
        while True:
            self._set_timeout(deadline)
            data = response.read1(65536)
            held += data
            if len(held) > DEFAULT_MAX_RESPONSE_BYTES:
                # TorchServe would end the worker.
                raise NotAnswered
            if not self._request.stream:
                if not data:
                    self._pass_on(_check_whole(held))
                    return
                continue
            events, mark, rest = held.rpartition(b"\n\n")
            if mark and (self.has_begun or _has_text(events)):
                self._pass_on(events + mark)
                held = rest
                if _DONE in events.split(b"\n\n"):
                    return
            if not data:
                raise ConnectionError("the answer ended in the middle")

    def _set_timeout(self, deadline: float) -> None:
        if self._loop.is_abandoned:
            self.cancel()
        left_s = _GAP_S if self.has_begun else deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        assert self._socket is not None
        self._socket.settimeout(left_s)

    def _pass_on(self, data: bytes) -> None:
        piece = Piece(data.decode())
        with self._lock:
            self._ready.append(piece)
            self.has_begun = True
        self._loop.wake()

    def _finish(self, end: End, *, reached: bool) -> None:
        with self._lock:
            result: Result = "forwarded" if end == "stop" else "broken" if self.has_begun else "returned"
            if self._is_cancelled:
                result = "cancelled"
            if self.has_begun:
                self.end = end
                self._ready.append(Piece("", (), end))
            else:
                self.has_failed = True
        self._ended(result, reached or result == "cancelled")
        self._loop.wake()


def _connection(request: ForwardedRequest) -> http.client.HTTPConnection:
    parts = urlsplit(request.url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.hostname or "", parts.port, timeout=request.patience_s)


def _check_whole(body: bytes) -> bytes:
    """The body of an answer that is not streamed; raises NotAnswered if it is not an answer, ConnectionError if it is
    cut short."""
    try:
        if "choices" in orjson.loads(body):
            return body
    except (ValueError, TypeError) as err:
        raise ConnectionError("the answer is cut short") from err
    raise NotAnswered


def _has_text(events: bytes) -> bool:
    """Whether the events contain text, or the end of an answer without any; raises NotAnswered if they are an error."""
    try:
        return any(
            event == _DONE or _is_text(orjson.loads(event.removeprefix(b"data: "))) for event in events.split(b"\n\n")
        )
    except (AttributeError, KeyError, TypeError, ValueError) as err:
        raise NotAnswered from err


def _is_text(event: dict[str, Any]) -> bool:
    if "error" in event:
        raise NotAnswered
    return any(
        choice.get("text") or choice.get("finish_reason") or any(map((choice.get("delta") or {}).get, _WRITTEN))
        for choice in event["choices"]
    )


class SmallModelRoute:
    """Decides which requests go to the small model, and counts what became of them."""

    def __init__(
        self,
        settings: Mapping[str, object],
        results: Mapping[str, Counter],
        loop: EngineLoop,
    ) -> None:
        self._short_tokens = int(str(settings["short_tokens"]))
        self._url, self._results, self._loop = str(settings["url"]), results, loop
        self._backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)

    def forward(self, request: TextRequest, trace: str | None = None) -> ForwardedAnswer | None:
        """The answer of the small model, in the same trace; None if this model has to answer the request itself.

        That is so for long prompts, for prompts of tokens, which another tokenizer may number differently, for requests
        that bypass the cache or were sent on to this model, and for turns of stored conversations."""
        stays = request.is_routed or not request.control.may_read or request.turn is not None
        stays |= isinstance(request.body.get("prompt"), list) or not request.is_shared
        if stays or len(request.parameters.prompt) > self._short_tokens:
            return None
        if self._backoff.is_active:
            self._results["skipped"].inc()
            return None
        try:
            forwarded = self._make_forwarded(request, trace)
        except TypeError:
            # The body is nested more deeply than orjson can write.
            return None
        return ForwardedAnswer(forwarded, self._loop, ended=self._count)

    def _make_forwarded(self, request: TextRequest, trace: str | None) -> ForwardedRequest:
        task, headers = request.task, {"Content-Type": "application/json", ROUTED_HEADER: "1"}
        if trace:
            headers[TRACE] = trace
        if task.priority == BATCH:
            headers[PRIORITY_HEADER] = "batch"
        patience_s = PATIENCE_S
        if task.deadline is not None:
            left_s = max(0.001, task.deadline - time.monotonic())
            headers["X-Request-Timeout-Ms"] = str(max(1, round(left_s * 1000)))
            patience_s = min(patience_s, left_s)
        body = {name: value for name, value in request.body.items() if name not in _NOT_SENT}
        return ForwardedRequest(self._url, orjson.dumps(body), headers, request.parameters.stream, patience_s)

    def _count(self, result: Result, is_reached: bool) -> None:
        self._results[result].inc()
        if is_reached:
            self._backoff.succeed()
            return
        if not self._backoff.is_active:
            logger.warning("the small model does not answer, so this model answers its prompts")
        self._backoff.fail()


def open_route(registry: CollectorRegistry, model: str, loop: EngineLoop) -> SmallModelRoute | None:
    """The route that `MARINA_ROUTE` describes; None without that variable."""
    text = os.environ.get(SETTINGS)
    if not text:
        return None
    counter = Counter(
        "inference_routed",
        "Short prompts: answered by the small model, returned by it before their first text, broken off by it after "
        "that, cancelled by their client, or not sent to it because it had failed just before",
        ["model", "result"],
        registry=registry,
    )
    results = {result: counter.labels(model, result) for result in _RESULTS}
    return SmallModelRoute(json.loads(text), results, loop)
