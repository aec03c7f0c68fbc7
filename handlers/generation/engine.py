"""What an engine is: it holds sequences in slots, and every step gives each of them that is past its prompt one token.

An engine decides nothing about when a sequence starts or ends. It goes on until it is told to stop, so that who reads
the tokens can end a sequence at a stop string, at its length or at a client's departure, before the next step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol


class Grammar(Protocol):
    """Which tokens may come next in an answer of a set form; it belongs to that answer and goes on with it."""

    def is_ready(self, patience_s: float = 0) -> bool:
        """Whether it is known what may come next, after waiting for it."""

    def allowed(self) -> Any:
        """An array of every token's permission to come next; raises where none has."""

    def take(self, token: int) -> bool:
        """This token comes next: whether the answer is complete with it."""


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen: `temperature` 0 takes the likeliest; `top_k` 0 and `top_p` 1 leave every token in;
    `logprobs` is how many of the likeliest are told with each token, None where nobody wants to know its own either;
    `grammar` leaves out what may not come next, and `schema` is what it was made of, for an engine that makes its own.
    `ignore_eos` goes on after a token that ends a text. An engine may end a sequence by itself after `max_tokens`."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    logprobs: int | None = None
    grammar: Grammar | None = None
    schema: str | None = None
    max_tokens: int | None = None
    ignore_eos: bool = False


class Token(NamedTuple):
    """One token of one sequence, with its log-probability among all tokens before any of them were left out, which may
    be none where nobody wants to know; `is_last` where its grammar lets nothing follow it."""

    sequence: str
    token: int
    logprob: float
    likeliest: tuple[tuple[int, float], ...] = ()
    is_last: bool = False


class NoToken(NamedTuple):
    """A sequence that could not be given its token: its answer is over, and no other's."""

    sequence: str


class Usage(NamedTuple):
    """How full an engine is: sequences it holds, how many it can hold, and tokens in its cache of so many; and of how
    many tokens of prompts it has found, since its start, that they are in its cache already."""

    sequences: int
    slots: int
    cached_tokens: int
    cache_tokens: int
    reused_tokens: int = 0


class Engine(Protocol):
    """Used by one thread. `add` may be called while `usage().sequences` is below `slots`, with a prompt that leaves
    room for what will be asked of it; `usage` raises where the engine is of no more use."""

    def add(self, sequence: str, prompt: Sequence[int], sampling: Sampling) -> None: ...

    def step(self) -> list[Token | NoToken]: ...

    def cancel(self, sequence: str) -> None: ...

    def usage(self) -> Usage: ...

    def close(self) -> None: ...
