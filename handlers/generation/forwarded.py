"""An answer that another server writes, read by a thread of its own and passed on as it came.

Nothing of it is passed on before its first text is there: until then it can be written here instead, and its client
notices nothing. What is passed on are whole events."""

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

from handlers.generation.sequence import End, Piece

Result = Literal["forwarded", "returned", "broken", "cancelled"]
_DONE = b"data: [DONE]"
# Between two pieces of an answer that has begun.
_GAP_S = 30.0


class NotWritten(Exception):
    """The other server was there, and does not write this answer."""


@dataclass(frozen=True)
class Letter:
    """What the other server is asked."""

    url: str
    body: bytes
    headers: Mapping[str, str]
    stream: bool
    patience_s: float


class Forwarded:
    """`ended` is told the result, and whether the other server could be reached; `changed` that there is something to
    take. `is_abandoned` says that nobody has asked for anything for long."""

    def __init__(
        self,
        letter: Letter,
        *,
        ended: Callable[[Result, bool], None],
        changed: Callable[[], None],
        is_abandoned: Callable[[], bool],
    ) -> None:
        self._letter, self._ended, self._changed, self._is_abandoned = letter, ended, changed, is_abandoned
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._is_cancelled = False
        self._ready: list[Piece] = []
        self.end: End | None = None
        self.has_begun = self.has_failed = False
        """Its first text is there; or none came, and none will."""
        threading.Thread(target=self._run, name="forwarded", daemon=True).start()

    @property
    def is_ready(self) -> bool:
        """Whether there is something that its client has not got, or none will come."""
        return bool(self._ready) or self.has_failed

    def take(self) -> list[Piece]:
        """What its client has not got yet."""
        with self._lock:
            ready, self._ready = self._ready, []
            return ready

    def cancel(self) -> None:
        """Its client is gone: the other server is told by the connection's end, or never asked."""
        with self._lock:
            self._is_cancelled = True
            if self._socket is not None:
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        deadline = time.monotonic() + self._letter.patience_s
        try:
            connection = _connection(self._letter)
            try:
                connection.connect()
                self._take_up(connection.sock)
                self._read(_response(connection, self._letter), deadline)
            finally:
                connection.close()
        except NotWritten:
            self._finish("error", reached=True)
        except (OSError, ValueError, http.client.HTTPException):
            self._finish("error", reached=False)
        else:
            self._finish("stop", reached=True)

    def _take_up(self, connected: socket.socket) -> None:
        """From here on `cancel` finds a connection to end; for a client that left before nobody is asked."""
        with self._lock:
            if self._is_cancelled:
                raise NotWritten
            self._socket = connected

    def _read(self, response: http.client.HTTPResponse, deadline: float) -> None:
        if response.status != 200:
            raise NotWritten
        held = b""
        while True:
            self._wait_at_most(deadline)
            data = response.read1(65536)
            held += data
            if not self._letter.stream:
                if not data:
                    self._pass_on(_whole(held))
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

    def _wait_at_most(self, deadline: float) -> None:
        if self._is_abandoned():
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
        self._changed()

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
        self._changed()


def _connection(letter: Letter) -> http.client.HTTPConnection:
    parts = urlsplit(letter.url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.hostname or "", parts.port, timeout=letter.patience_s)


def _response(connection: http.client.HTTPConnection, letter: Letter) -> http.client.HTTPResponse:
    connection.request("POST", urlsplit(letter.url).path, letter.body, dict(letter.headers))
    return connection.getresponse()


def _whole(body: bytes) -> bytes:
    """An answer that came whole; NotWritten where it is cut short."""
    try:
        if "choices" in orjson.loads(body):
            return body
    except (ValueError, TypeError) as err:
        raise ConnectionError("the answer is cut short") from err
    raise NotWritten


def _has_text(events: bytes) -> bool:
    """Whether the first text is among the events, or an end without any; NotWritten where there is an error instead."""
    try:
        return any(
            event == _DONE or _is_text(orjson.loads(event.removeprefix(b"data: "))) for event in events.split(b"\n\n")
        )
    except (AttributeError, KeyError, TypeError, ValueError) as err:
        raise NotWritten from err


def _is_text(event: dict[str, Any]) -> bool:
    if "error" in event:
        raise NotWritten
    return any(
        choice.get("text") or (choice.get("delta") or {}).get("content") or choice.get("finish_reason")
        for choice in event["choices"]
    )
