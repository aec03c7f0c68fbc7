"""Answers in OpenAI's form: one JSON body at the end, or an event for each piece and then `[DONE]`."""

import time
from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator, Sequence
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
        self._parameters = parameters
        self.has_schema = parameters.schema is not None
        of_chat = "chat.completion.chunk" if parameters.stream else "chat.completion"
        prefix, kind = ("chatcmpl", of_chat) if parameters.endpoint == "chat" else ("cmpl", "text_completion")
        self._head = {
            "id": f"{prefix}-{request_id}",
            "object": kind,
            "created": int(time.time()),
            "model": model,
        }
        prompts = [prompt for prompt in parameters.prompts or (parameters.prompt,) for _ in range(parameters.choices)]
        self._choices = [
            ChoiceWriter(parameters, tokenizer, request_id, at, prompt) for at, prompt in enumerate(prompts)
        ]
        self._open = len(prompts)
        self._count = 0

    def write(self, pieces: Iterable[Piece]) -> bytes:
        """The bytes to send now; an answer that is not streamed has none before its last piece."""
        events = [self._take(piece) for piece in pieces]
        if self._parameters.stream or self._open:
            return b"".join(events)
        choices = [choice.whole() for choice in self._choices]
        return orjson.dumps(self._head | {"choices": choices, "usage": self._usage()})

    def message(self, text: str) -> dict[str, Any]:
        """The message of a complete answer."""
        return self._choices[0].message(text)

    def _take(self, piece: Piece) -> bytes:
        """The events of a piece; none if the answer is not streamed."""
        self._open -= piece.end is not None
        # The engine writes one token at least.
        self._count += 0 if self._parameters.is_empty else len(piece.tokens)
        choice = self._choices[piece.choice]
        if not self._parameters.stream:
            choice.add(piece)
            return b""
        events = [self._chunk([event]) for event in choice.events(piece)]
        if not self._open:
            if self._parameters.include_usage:
                events.append(self._chunk([], usage=self._usage()))
            events.append(_DONE)
        return b"".join(events)

    def _chunk(self, choices: list[dict[str, Any]], usage: dict[str, int] | None = None) -> bytes:
        data = self._head | {"choices": choices}
        if self._parameters.include_usage:
            data["usage"] = self._usage() if self._parameters.usage_so_far else usage
        return b"data: " + orjson.dumps(data) + b"\n\n"

    def _usage(self) -> dict[str, int]:
        prompt = sum(map(len, self._parameters.prompts or (self._parameters.prompt,)))
        return {"prompt_tokens": prompt, "completion_tokens": self._count, "total_tokens": prompt + self._count}


class ChoiceWriter:
    """Writes one of the answers to a request."""

    def __init__(
        self, parameters: Parameters, tokenizer: ModelTokenizer, request_id: str, index: int, prompt: Sequence[int]
    ) -> None:
        self._parameters, self._tokenizer = parameters, tokenizer
        self._request, self._index, self._prompt = request_id, index, prompt
        self._reader = None if parameters.reading is None else AnswerReader(parameters.reading)
        self._begun = self._has_called = False
        self._offset = 0
        self._characters = getincrementaldecoder("utf-8")("replace")
        self._pieces: list[Piece] = []

    def add(self, piece: Piece) -> None:
        """Adds a piece to the answer that `whole` gives."""
        self._pieces.append(piece)

    def whole(self) -> dict[str, Any]:
        tokens = tuple(token for piece in self._pieces for token in piece.tokens)
        return self._choice(Piece("".join(piece.text for piece in self._pieces), tokens, self._pieces[-1].end))

    def events(self, piece: Piece) -> Iterator[dict[str, Any]]:
        """What a stream has of this piece."""
        if not self._begun and self._parameters.endpoint == "chat":
            head = {"delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
            yield {"index": self._index} | head
        if piece.text or piece.end or self._parameters.with_logprobs or (self._parameters.echo and not self._begun):
            yield self._choice(piece)

    def _choice(self, piece: Piece) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": self._index}
        end: str | None = piece.end
        tokens = piece.tokens
        if self._parameters.endpoint == "completion":
            choice["text"] = piece.text
            if self._parameters.echo and not self._begun:
                choice["text"] = self._tokenizer.decode(self._prompt) + piece.text
                tokens = (*(tokens[0].before if tokens else ()), *tokens)
            if self._parameters.is_empty:
                tokens = tokens[:-1]
                choice["text"] = choice["text"][: len(choice["text"]) - len(piece.text)]
        elif self._parameters.stream:
            delta = self._read(piece)
            choice["delta"] = {"content": delta.content} if delta.content else {}
            choice["delta"] |= self._reasoning_and_calls(delta)
        else:
            choice["message"] = self.message(piece.text) | {"refusal": None}
        self._begun = True
        if self._has_called and end == "stop" and not self._parameters.is_named:
            end = "tool_calls"
        choice["logprobs"] = self._logprobs(tokens) if self._parameters.with_logprobs else None
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
        name = blake2b(f"{self._request} {self._index} {number}".encode(), digest_size=4).hexdigest()
        head = {"id": f"c{name}", "type": "function"}
        return index | head | {"function": {"name": call.name, "arguments": call.arguments}}

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
            # The first token of a prompt has nothing before it.
            "token_logprobs": [None if token.logprob > 0 else token.logprob for _, token in named],
            "top_logprobs": [
                None if token.logprob > 0 else {self._name(at): value for at, value in token.likeliest}
                for _, token in named
            ],
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
