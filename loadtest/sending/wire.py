"""Parses one HTTP/1.1 answer from the bytes of a connection, however they are split, and its events as they arrive.

It does no I/O. It is kept small because one process must parse thousands of small answers per second and leave the core
to the server."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

_BEGIN, _HEX = b"HTTP/1.", b"0123456789abcdefABCDEF"
# Longer heads than this are refused by every server and proxy, too.
_LONGEST_HEAD, _MOST_DIGITS = 65536, 20


class BrokenAnswer(Exception):
    """Raised if the bytes are not an HTTP answer, or end before the answer does."""


class HttpAnswer(NamedTuple):
    """A complete answer, and whether its connection can be used again."""

    status: int
    body: bytes
    keep_alive: bool


class _Head(NamedTuple):
    status: int
    length: int | None
    chunked: bool
    keep_alive: bool
    body_at: int


class AnswerReader:
    """Parses an answer: `feed` takes the bytes that arrive, and returns the answer once it is complete."""

    def __init__(self, on_body: Callable[[bytes], None] | None = None) -> None:
        # Not bytes: adding to those copies all that came before, so a large answer would take minutes.
        self._data = bytearray()
        self._head: _Head | None = None
        self._on_body = on_body
        self._parts: list[bytes] = []

    def feed(self, data: bytes) -> HttpAnswer | None:
        """Takes the next bytes; BrokenAnswer if they cannot be part of an answer."""
        self._data += data
        while self._head is None:
            end = self._data.find(b"\r\n\r\n")
            if end < 0:
                if len(self._data) > _LONGEST_HEAD or not self._data.startswith(_BEGIN[: len(self._data)]):
                    raise BrokenAnswer("the answer is not HTTP/1")
                return None
            head = _parse_head(bytes(self._data[:end]))
            if head.status >= 200:
                self._head = head
            else:
                del self._data[: end + 4]
        return self._complete(self._head)

    def finish(self) -> HttpAnswer:
        """The answer if the server ended it by closing the connection; BrokenAnswer if something is missing."""
        head = self._head
        if head is None or head.chunked or head.length is not None:
            raise BrokenAnswer("the connection was closed before the answer was complete")
        body = b"".join([*self._parts, self._data[head.body_at :]])
        return HttpAnswer(head.status, body, keep_alive=False)

    def _complete(self, head: _Head) -> HttpAnswer | None:
        if head.chunked:
            return self._complete_chunks(head)
        if head.length is None:
            # It ends with the connection, as HTTP/1.0 and some streams do.
            if self._on_body is not None and len(self._data) > head.body_at:
                self._take_part(bytes(self._data[head.body_at :]))
                del self._data[head.body_at :]
            return None
        end = head.body_at + head.length
        if len(self._data) < end:
            return None
        body = bytes(self._data[head.body_at : end])
        # A stream that was complete at once has a length instead of chunks.
        if self._on_body is not None:
            self._on_body(body)
        # Bytes after the answer belong to no request of ours, so the connection cannot be trusted any more.
        return HttpAnswer(head.status, body, head.keep_alive and len(self._data) == end)

    def _complete_chunks(self, head: _Head) -> HttpAnswer | None:
        at = 0 if self._parts else head.body_at
        while (line_end := self._data.find(b"\r\n", at)) >= 0:
            digits = bytes(self._data[at:line_end]).split(b";")[0].strip()
            # `int` would also take a sign, and a negative size would be read for ever.
            if not digits or digits.strip(_HEX):
                raise BrokenAnswer("a chunk has no size")
            size = int(digits, 16)
            start, end = line_end + 2, line_end + 2 + size + 2
            if size == 0:
                return self._after_trailer(head, start, b"".join(self._parts))
            if len(self._data) < end:
                return None
            self._take_part(bytes(self._data[start : start + size]))
            # Parsed bytes are dropped, so they are not searched again, however many chunks follow.
            del self._data[:end]
            at = 0
        return None

    def _take_part(self, part: bytes) -> None:
        self._parts.append(part)
        if self._on_body is not None:
            self._on_body(part)

    def _after_trailer(self, head: _Head, start: int, body: bytes) -> HttpAnswer | None:
        while (line_end := self._data.find(b"\r\n", start)) >= 0:
            if line_end == start:
                return HttpAnswer(head.status, body, head.keep_alive and len(self._data) == line_end + 2)
            start = line_end + 2
        return None


class EventReader:
    """Parses the events of an OpenAI stream, and records when text arrived."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._rest = b""
        self._done = self._failed = False
        self.times: list[float] = []
        """When each piece of text arrived; for an answer without any text, when its finish reason arrived."""
        self.written_at = 0.0
        """When the last token arrived; the token that ends a text has no text of its own."""
        self.usage: Any = {}
        """What the server says that it counted."""

    @property
    def is_complete(self) -> bool:
        """Whether the stream ended with `[DONE]`, and had text and no error."""
        return self._done and not self._failed and bool(self.times)

    def used(self, *names: str) -> int:
        """A count in the server's `usage`, which may be nested; 0 if the server does not count it."""
        value = self.usage
        for name in names:
            value = value.get(name) if isinstance(value, dict) else None
        return value if isinstance(value, int) and value > 0 else 0

    def feed(self, data: bytes) -> None:
        """Takes the next bytes of the body."""
        now = self._clock()
        *events, self._rest = (self._rest + data).replace(b"\r\n", b"\n").split(b"\n\n")
        for event in events:
            if (event_data := _event_data(event)) is not None:
                self._take(event_data, now)

    def _take(self, event: bytes, now: float) -> None:
        if event == b"[DONE]":
            self._done = True
            return
        try:
            data = json.loads(event)
            choices = data["choices"]
            if choices:
                has_text = _has_text(choices[0])
                if has_text or choices[0].get("finish_reason"):
                    self.written_at = now
                    if has_text or not self.times:
                        self.times.append(now)
            self.usage = data.get("usage") or self.usage
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            self._failed = True


def _event_data(event: bytes) -> bytes | None:
    """The data of an event; None for comments, which some servers send to keep the connection open."""
    if event.startswith(b"data: ") and b"\n" not in event:
        return event[6:]
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None


def _has_text(choice: dict[str, Any]) -> bool:
    return bool(choice["text"] if "text" in choice else choice["delta"].get("content"))


def _parse_head(data: bytes) -> _Head:
    if not data.startswith(_BEGIN) or not data[9:12].isdigit():
        raise BrokenAnswer("the answer is not HTTP/1")
    status, lines = int(data[9:12]), data.lower().split(b"\r\n")
    length: int | None = None
    chunked, keep_alive = False, data.startswith(b"HTTP/1.1")
    for line in lines[1:]:
        name, _, value = line.partition(b":")
        if name == b"content-length":
            if not value.strip().isdigit() or len(value) > _MOST_DIGITS:
                raise BrokenAnswer("content-length is not a number")
            length = int(value)
        elif name == b"transfer-encoding":
            chunked = b"chunked" in value
        elif name == b"connection":
            keep_alive = b"close" not in value and (keep_alive or b"keep-alive" in value)
    if status in (204, 304):
        # They never have a body, whatever their headers say: https://www.rfc-editor.org/rfc/rfc9112#section-6.3
        length, chunked = 0, False
    return _Head(status, length, chunked, keep_alive, len(data) + 4)
