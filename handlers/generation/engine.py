"""The interface of an engine: it holds sequences in slots, and each step gives one token to every sequence whose prompt
has been read.

An engine does not decide when a sequence starts or ends. It continues a sequence until `cancel`, so that the caller can
end it before the next step: at a stop string, at its length, or when its client leaves."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol


class Grammar(Protocol):
    """Which tokens may come next in one answer that has to match a schema; `take` moves it on by a token."""

    def is_ready(self, patience_s: float = 0) -> bool:
        """Waits up to `patience_s`; True if `allowed` can be called."""

    def allowed(self) -> Any:
        """An array with a flag for every token: whether it may come next. Raises if none may."""

    def take(self, token: int) -> bool:
        """Appends this token to the answer; True if the answer is complete with it."""


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen.

    `temperature` 0 takes the likeliest token; `top_k` 0 and `top_p` 1 exclude none. `logprobs` is how many of the
    likeliest tokens are returned with each token; with None even the token's own log-probability may be missing.
    `grammar` excludes tokens that may not come next; `schema` is its source, for an engine that makes its own grammar.
    With `ignore_eos` a sequence goes on after an end token. An engine may end a sequence after `max_tokens`.

    The penalties are taken from the scores of tokens that were written before: `presence` once, `frequency` for each
    time; `repetition` divides scores, of the prompt's tokens too. `bias` is added to the scores of its tokens, `min_p`
    excludes tokens with a smaller share of the likeliest one's chance, and the first `min_tokens` are none of
    `ends`, after which the answer is over."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    logprobs: int | None = None
    grammar: Grammar | None = None
    schema: str | None = None
    max_tokens: int | None = None
    ignore_eos: bool = False
    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0
    bias: tuple[tuple[int, float], ...] = ()
    min_p: float = 0.0
    min_tokens: int = 0
    ends: tuple[int, ...] = ()
    prompt_logprobs: bool = False

    @property
    def changes_scores(self) -> bool:
        return bool(self.presence or self.frequency or self.repetition != 1 or self.bias or self.min_tokens)


class Token(NamedTuple):
    """One token of one sequence. `logprob` is its log-probability among all tokens, before any were excluded; it may be
    NaN if `Sampling.logprobs` is None. `is_last` is True if the grammar allows nothing after the token. With
    `Sampling.prompt_logprobs` the first token of an answer has those of its prompt `before` it; the first of these has
    no log-probability, which is then above 0."""

    sequence: str
    token: int
    logprob: float
    likeliest: tuple[tuple[int, float], ...] = ()
    is_last: bool = False
    before: tuple["Token", ...] = ()


class NoToken(NamedTuple):
    """A sequence that gets no more tokens: its answer is over. Other sequences go on."""

    sequence: str


class Usage(NamedTuple):
    """How full an engine is: the sequences it holds, of at most `slots`, and the tokens in its cache, of at most
    `cache_tokens`. `reused_tokens` counts the tokens of prompts that the cache had already."""

    sequences: int
    slots: int
    cached_tokens: int
    cache_tokens: int
    reused_tokens: int = 0


class Engine(Protocol):
    """Used by one thread. `add` may be called while `usage().sequences` is below `usage().slots`; a prompt and the
    tokens that are asked for must fit into the context. `usage` raises if the engine has failed."""

    def add(self, sequence: str, prompt: Sequence[int], sampling: Sampling) -> None: ...

    def step(self) -> list[Token | NoToken]: ...

    def cancel(self, sequence: str) -> None: ...

    def usage(self) -> Usage: ...

    def close(self) -> None: ...
