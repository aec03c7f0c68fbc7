"""One answer that is being written: what was asked, the tokens so far, the text that is whole, and why it ended."""

from dataclasses import dataclass, field
from typing import Literal, Protocol

from handlers.generation.engine import Sampling, Token
from handlers.generation.words import StopFinder, Unfolding

End = Literal["stop", "length", "error"]
INTERACTIVE, BATCH = 0, 1


@dataclass(frozen=True)
class Wish:
    """What a client asked for, checked. `deadline` is on the loop's clock."""

    id: str
    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling
    stop: tuple[str, ...] = ()
    priority: int = INTERACTIVE
    deadline: float | None = None


@dataclass(frozen=True)
class Piece:
    """Text that can be sent, the tokens that it was made of, and how it ended, if it has."""

    text: str
    tokens: tuple[Token, ...] = ()
    end: End | None = None


class Answering(Protocol):
    """Where the pieces of an answer come from; `end` is there when the last of them is."""

    @property
    def end(self) -> End | None: ...

    @property
    def is_ready(self) -> bool: ...

    def take(self) -> list[Piece]: ...


@dataclass
class Sequence:
    """A wish on its way. `ends` are tokens after which a model has nothing more to say."""

    wish: Wish
    unfolding: Unfolding
    ends: frozenset[int]
    since: float
    count: int = 0
    first_at: float | None = None
    last_at: float | None = None
    end: End | None = None
    _ready: list[Piece] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stops = StopFinder(self.wish.stop)

    def accept(self, token: Token, now: float) -> float | None:
        """One more token; seconds since the one before it."""
        gap = None if self.last_at is None else now - self.last_at
        self.first_at, self.last_at = self.first_at if self.first_at is not None else now, now
        self.count += 1
        if token.token in self.ends:
            self.finish("stop", (token,))
            return gap
        text, stopped = self._stops.feed(self.unfolding.feed(token.token))
        if stopped:
            self.end = "stop"
            self._ready.append(Piece(text, (token,), "stop"))
        elif token.is_last:
            self.finish("stop", (token,), text)
        elif self.count >= self.wish.max_tokens:
            self.finish("length", (token,), text)
        else:
            self._ready.append(Piece(text, (token,)))
        return gap

    def finish(self, end: End, tokens: tuple[Token, ...] = (), text: str = "") -> None:
        """Ends it with all text that was held back, but what a stop string ends."""
        rest, stopped = self._stops.feed(self.unfolding.flush())
        text += rest if stopped else rest + self._stops.flush()
        self.end = "stop" if stopped else end
        self._ready.append(Piece(text, tokens, self.end))

    def fail(self) -> None:
        """Ends it where it is: something raised that was done for it alone."""
        self.end = "error"

    def is_overdue(self, now: float) -> bool:
        """Whether its deadline has passed before its end."""
        return self.end is None and self.wish.deadline is not None and now > self.wish.deadline

    @property
    def is_ready(self) -> bool:
        """Whether there is something that its client has not got."""
        return bool(self._ready) or self.end == "error"

    def take(self) -> list[Piece]:
        """What its client has not got yet."""
        ready, self._ready = self._ready, []
        return ready
