"""Answers in OpenAI's form: one JSON body at the end, or an event for each piece and then `[DONE]`."""

import time
from codecs import getincrementaldecoder
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

import orjson

from marina.handlers.generation.dialects.reading import AnswerReader, Call, Delta, read_whole
from marina.handlers.generation.engine import Token
from marina.handlers.generation.parameters import Parameters
from marina.handlers.generation.sequence import Piece
from marina.handlers.generation.tokenizer import REPLACEMENT, ModelTokenizer

JSON, EVENTS = "application/json", "text/event-stream; charset=utf-8"
_DONE = b"data: [DONE]\n\n"


class VerbatimWriter:
    """Passes on an answer that another server has written, unchanged."""

    has_schema = False

    def __init__(self, *, stream: bool) -> None:
        self._stream = stream

    @property
    def content_type(self) -> str:
        return EVENTS if self._stream else JSON

    def write(self, pieces: Iterable[Piece]) -> bytes:
        """The bytes to send now."""
        return b"".join(piece.text.encode() for piece in pieces)

    def fail(self, body: bytes) -> bytes:
        """The bytes that end an answer with an error after its beginning was sent."""
        return b"data: " + body + b"\n\n" + _DONE if self._stream else body


class AnswerWriter(VerbatimWriter):
    """Writes the answer to one request from the pieces of this server's own model."""

    def __init__(self, parameters: Parameters, model: str, request_id: str, tokenizer: ModelTokenizer) -> None:
        super().__init__(stream=parameters.stream)
        self._parameters, self._tokenizer = parameters, tokenizer
        self._reader = None if parameters.reading is None else AnswerReader(parameters.reading)
        self.has_schema = parameters.schema is not None
        of_chat = "chat.completion.chunk" if parameters.stream else "chat.completion"
        prefix, kind = ("chatcmpl", of_chat) if parameters.endpoint == "chat" else ("cmpl", "text_completion")
        self._head = {
            "id": f"{prefix}-{request_id}",
            "object": kind,
            "created": int(time.time()),
            "model": model,
        }
        self._begun = self._has_called = False
        self._count = self._offset = 0
        self._characters = getincrementaldecoder("utf-8")("replace")
        self._pieces: list[Piece] = []

    def write(self, pieces: Iterable[Piece]) -> bytes:
        """The bytes to send now; an answer that is not streamed has none before its last piece."""
        if self._parameters.stream:
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
        if not self._begun and self._parameters.endpoint == "chat":
            first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
            events.append(self._chunk([first]))
        self._begun = True
        if piece.text or piece.end or self._parameters.with_logprobs:
            events.append(self._chunk([self._choice(piece)]))
        if piece.end:
            if self._parameters.include_usage:
                events.append(self._chunk([], usage=self._usage()))
            events.append(_DONE)
        return b"".join(events)

    def _chunk(self, choices: list[dict[str, Any]], usage: dict[str, int] | None = None) -> bytes:
        data = self._head | {"choices": choices}
        if self._parameters.include_usage:
            data["usage"] = self._usage() if self._parameters.usage_so_far else usage
        return b"data: " + orjson.dumps(data) + b"\n\n"

    def _choice(self, piece: Piece) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0}
        end: str | None = piece.end
        if self._parameters.endpoint == "completion":
            choice["text"] = piece.text
        elif self._parameters.stream:
            delta = self._read(piece)
            choice["delta"] = {"content": delta.content} if delta.content else {}
            choice["delta"] |= self._reasoning_and_calls(delta)
        else:
            choice["message"] = self.message(piece.text) | {"refusal": None}
        if self._has_called and end == "stop" and not self._parameters.is_named:
            end = "tool_calls"
        choice["logprobs"] = self._logprobs(piece.tokens) if self._parameters.with_logprobs else None
        return choice | {"finish_reason": end}

    def message(self, text: str) -> dict[str, Any]:
        """The message of a complete answer."""
        reading = self._parameters.reading
        delta = Delta(content=text) if reading is None else read_whole(reading, text)
        more = self._reasoning_and_calls(delta)
        content = None if "tool_calls" in more and not delta.content else delta.content
        return {"role": "assistant", "content": content} | more

    def _read(self, piece: Piece) -> Delta:
        """What a piece of a stream adds."""
        if self._reader is None:
            return Delta(content=piece.text)
        delta = self._reader.feed(piece.text)
        if piece.end:
            last = self._reader.finish()
            delta = Delta(delta.reasoning + last.reasoning, delta.content + last.content, delta.calls + last.calls)
        return delta

    def _reasoning_and_calls(self, delta: Delta) -> dict[str, Any]:
        fields: dict[str, Any] = {"reasoning_content": delta.reasoning} if delta.reasoning else {}
        tools = self._parameters.tools
        if calls := [self._call(number, call) for number, call in delta.calls if tools and (tools.many or not number)]:
            self._has_called = True
            fields["tool_calls"] = calls
        return fields

    def _call(self, number: int, call: Call) -> dict[str, Any]:
        index = {"index": number} if self._parameters.stream else {}
        if not call.name:
            return index | {"function": {"arguments": call.arguments}}
        # Mistral's templates take no other ids than those of nine letters.
        name = blake2b(f"{self._head['id']} {number}".encode(), digest_size=4).hexdigest()
        head = {"id": f"c{name}", "type": "function"}
        return index | head | {"function": {"name": call.name, "arguments": call.arguments}}

    def _usage(self) -> dict[str, int]:
        prompt = len(self._parameters.prompt)
        return {"prompt_tokens": prompt, "completion_tokens": self._count, "total_tokens": prompt + self._count}

    def _logprobs(self, tokens: Iterable[Token]) -> dict[str, Any]:
        if self._parameters.endpoint == "chat":
            return {"content": [self._chat_logprob(token) for token in tokens], "refusal": None}
        named = [(self._name(token.token), token) for token in tokens]
        offsets = []
        for _, token in named:
            offsets.append(self._offset)
            self._offset += len(self._characters.decode(self._tokenizer.bytes_of(token.token)))
        return {
            "tokens": [name for name, _ in named],
            "token_logprobs": [token.logprob for _, token in named],
            "top_logprobs": [{self._name(at): value for at, value in token.likeliest} for _, token in named],
            "text_offset": offsets,
        }

    def _name(self, token: int) -> str:
        """A token's text; for a part of a character its bytes as OpenAI writes them, since all parts have one text."""
        name = self._tokenizer.name(token)
        if REPLACEMENT not in name:
            return name
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in self._tokenizer.bytes_of(token))

    def _chat_logprob(self, token: Token) -> dict[str, Any]:
        likeliest = [self._logprob(at, value) for at, value in token.likeliest]
        return self._logprob(token.token, token.logprob) | {"top_logprobs": likeliest}

    def _logprob(self, token: int, logprob: float) -> dict[str, Any]:
        return {
            "token": self._tokenizer.name(token),
            "logprob": logprob,
            "bytes": list(self._tokenizer.bytes_of(token)),
        }
