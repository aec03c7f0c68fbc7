"""OpenAI's answers: one JSON body at the end, or an event for every piece and `[DONE]`."""

import time
from codecs import getincrementaldecoder
from collections.abc import Iterable
from typing import Any

import orjson

from handlers.generation.engine import Token
from handlers.generation.sequence import Piece
from handlers.generation.tokens import Tokens
from handlers.generation.wishes import Asked
from handlers.generation.words import BROKEN

JSON, EVENTS = "application/json", "text/event-stream; charset=utf-8"
_DONE = b"data: [DONE]\n\n"
_OBJECTS = {
    ("completion", False): "text_completion",
    ("completion", True): "text_completion",
    ("chat", False): "chat.completion",
    ("chat", True): "chat.completion.chunk",
}


class Verbatim:
    """Passes on the answer to one request that another server has written."""

    def __init__(self, *, stream: bool) -> None:
        self._stream = stream

    @property
    def content_type(self) -> str:
        return EVENTS if self._stream else JSON

    def write(self, pieces: Iterable[Piece]) -> bytes:
        """What to send now."""
        return b"".join(piece.text.encode() for piece in pieces)

    def fail(self, body: bytes) -> bytes:
        """The end of an answer that cannot be finished, after its beginning was sent."""
        return b"data: " + body + b"\n\n" + _DONE if self._stream else body


class Writer(Verbatim):
    """Writes the answer to one request, as its pieces come: those of this server's own model."""

    def __init__(self, asked: Asked, model: str, request_id: str, tokens: Tokens) -> None:
        super().__init__(stream=asked.stream)
        self._asked, self._tokens = asked, tokens
        prefix = "chatcmpl" if asked.form == "chat" else "cmpl"
        self._head = {
            "id": f"{prefix}-{request_id}",
            "object": _OBJECTS[asked.form, asked.stream],
            "created": int(time.time()),
            "model": model,
        }
        self._begun = False
        self._count = self._told = 0
        self._characters = getincrementaldecoder("utf-8")("replace")
        self._pieces: list[Piece] = []

    def write(self, pieces: Iterable[Piece]) -> bytes:
        """What to send now; nothing yet, maybe."""
        if self._asked.stream:
            return b"".join(self._event(piece) for piece in pieces)
        self._pieces += pieces
        if not self._pieces or self._pieces[-1].end is None:
            return b""
        tokens = tuple(token for piece in self._pieces for token in piece.tokens)
        self._count = len(tokens)
        whole = Piece("".join(piece.text for piece in self._pieces), tokens, self._pieces[-1].end)
        return orjson.dumps(self._head | {"choices": [self._choice(whole)], "usage": self._usage()})

    def _event(self, piece: Piece) -> bytes:
        events = []
        self._count += len(piece.tokens)
        if not self._begun and self._asked.form == "chat":
            first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
            events.append(self._chunk([first]))
        self._begun = True
        if piece.text or piece.end or self._asked.with_logprobs:
            events.append(self._chunk([self._choice(piece)]))
        if piece.end:
            if self._asked.include_usage:
                events.append(self._chunk([], usage=self._usage()))
            events.append(_DONE)
        return b"".join(events)

    def _chunk(self, choices: list[dict[str, Any]], usage: dict[str, int] | None = None) -> bytes:
        data = self._head | {"choices": choices}
        if self._asked.include_usage:
            data["usage"] = self._usage() if self._asked.usage_so_far else usage
        return b"data: " + orjson.dumps(data) + b"\n\n"

    def _choice(self, piece: Piece) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0}
        if self._asked.form == "completion":
            choice["text"] = piece.text
        elif self._asked.stream:
            choice["delta"] = {"content": piece.text} if piece.text else {}
        else:
            choice["message"] = {"role": "assistant", "content": piece.text, "refusal": None}
        choice["logprobs"] = self._logprobs(piece.tokens) if self._asked.with_logprobs else None
        return choice | {"finish_reason": piece.end}

    def _usage(self) -> dict[str, int]:
        prompt = len(self._asked.prompt)
        return {"prompt_tokens": prompt, "completion_tokens": self._count, "total_tokens": prompt + self._count}

    def _logprobs(self, tokens: Iterable[Token]) -> dict[str, Any]:
        if self._asked.form == "chat":
            return {"content": [self._of_chat(token) for token in tokens], "refusal": None}
        named = [(self._written(token.token), token) for token in tokens]
        offsets = []
        for _, token in named:
            offsets.append(self._told)
            self._told += len(self._characters.decode(self._tokens.bytes_of(token.token)))
        return {
            "tokens": [name for name, _ in named],
            "token_logprobs": [token.logprob for _, token in named],
            "top_logprobs": [{self._written(at): value for at, value in token.likeliest} for _, token in named],
            "text_offset": offsets,
        }

    def _written(self, token: int) -> str:
        """Its text, or as OpenAI writes it the bytes of half a character, which would all be the same text."""
        name = self._tokens.name(token)
        if BROKEN not in name:
            return name
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in self._tokens.bytes_of(token))

    def _of_chat(self, token: Token) -> dict[str, Any]:
        likeliest = [self._named(at, value) for at, value in token.likeliest]
        return self._named(token.token, token.logprob) | {"top_logprobs": likeliest}

    def _named(self, token: int, logprob: float) -> dict[str, Any]:
        return {"token": self._tokens.name(token), "logprob": logprob, "bytes": list(self._tokens.bytes_of(token))}
