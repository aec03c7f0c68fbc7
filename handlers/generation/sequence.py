"""One answer that is being written: its task, the text that can be sent so far, and how it ended."""

import time
from dataclasses import dataclass, field
from typing import Literal, Protocol

from marina.handlers.generation.engine import Sampling, Token
from marina.handlers.generation.tokenizer import Detokenizer, StopFinder

End = Literal["stop", "length", "error"]
INTERACTIVE, BATCH = 0, 1


@dataclass(frozen=True)
class GenerationTask:
    """What the engine has to do for one answer. `deadline` and `arrived` are times of `time.monotonic`; `marks` are the
    special tokens that are not left out of the text; with `follows` it takes the place of one that has ended."""

    id: str
    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling
    stop: tuple[str, ...] = ()
    priority: int = INTERACTIVE
    deadline: float | None = None
    arrived: float = field(default_factory=time.monotonic)
    marks: tuple[str, ...] = ()
    follows: bool = False

    def is_overdue(self, now: float) -> bool:
        return self.deadline is not None and now > self.deadline


@dataclass(frozen=True)
class Piece:
    """Text that can be sent, the tokens that it was made of, and with the last piece how the answer ended. `choice` is
    its number if there are several answers."""

    text: str
    tokens: tuple[Token, ...] = ()
    end: End | None = None
    choice: int = 0


class AnswerSource(Protocol):
    """Where the pieces of an answer come from."""

    @property
    def end(self) -> End | None:
        """How the answer ended; None while pieces may still come."""

    @property
    def is_ready(self) -> bool:
        """True if there are pieces that were not taken yet, or if there will be none because of an error."""

    def take(self) -> list[Piece]:
        """The pieces since the last call."""


@dataclass
class TextSequence:
    """A sequence of the engine and the text made of its tokens, an `AnswerSource`. `ends` are the end tokens of the
    model."""

    task: GenerationTask
    detokenizer: Detokenizer
    ends: frozenset[int]
    count: int = 0
    started_at: float | None = None
    """When it got a slot of the engine."""
    first_at: float | None = None
    last_at: float | None = None
    end: End | None = None
    _ready: list[Piece] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stops = StopFinder(self.task.stop)

    def accept(self, token: Token, now: float) -> float | None:
        """Adds one token; returns the seconds since the token before it, None for the first."""
        gap = None if self.last_at is None else now - self.last_at
        self.first_at, self.last_at = self.first_at if self.first_at is not None else now, now
        self.count += 1
        if token.token in self.ends:
            self.finish("stop", (token,))
            return gap
        text, stopped = self._stops.feed(self.detokenizer.feed(token.token))
        if stopped:
            self.end = "stop"
            self._ready.append(Piece(text, (token,), "stop"))
        elif token.is_last:
            self.finish("stop", (token,), text)
        elif self.count >= self.task.max_tokens:
            self.finish("length", (token,), text)
        else:
            self._ready.append(Piece(text, (token,)))
        return gap

    def finish(self, end: End, tokens: tuple[Token, ...] = (), text: str = "") -> None:
        """Ends the answer with the text that was held back, up to a stop string in it."""
        rest, stopped = self._stops.feed(self.detokenizer.flush())
        text += rest if stopped else rest + self._stops.flush()
        self.end = "stop" if stopped else end
        self._ready.append(Piece(text, tokens, self.end))

    def fail(self) -> None:
        """Ends the answer with an error, after the pieces so far."""
        self.end = "error"

    @property
    def is_ready(self) -> bool:
        return bool(self._ready) or self.end == "error"

    def take(self) -> list[Piece]:
        ready, self._ready = self._ready, []
        return ready
