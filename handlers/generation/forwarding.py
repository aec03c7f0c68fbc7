"""An answer that another server writes, read by a thread of its own and passed on unchanged, in whole events.

Nothing is passed on before its first text has come: until then this server can write the answer instead, and the client
notices nothing."""

import http.client
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

import orjson

from marina.handlers.generation.loop import EngineLoop
from marina.handlers.generation.sequence import End, Piece
from marina.handlers.record import DEFAULT_MAX_RESPONSE_BYTES

Result = Literal["forwarded", "returned", "broken", "cancelled"]
_DONE = b"data: [DONE]"
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
        choice.get("text") or (choice.get("delta") or {}).get("content") or choice.get("finish_reason")
        for choice in event["choices"]
    )
