"""Chooses a token by the scores of all tokens. Each sequence has its own random generator, so that with a seed and the
same scores its answer is the same, whatever runs beside it."""

from typing import Any, TypeAlias

import numpy as np

from marina.handlers.generation.engine import Sampling

Scores: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]


class Sampler:
    """Chooses the tokens of one sequence. `is_over` is True when its grammar allows nothing more."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling, self._grammar = sampling, sampling.grammar
        # The grammar was not ready in time, so the sequence is left out of steps until it is.
        self._is_late = False
        self.is_over = False
        # OpenAI's seeds may be negative, numpy's may not.
        self._random = np.random.default_rng(None if sampling.seed is None else sampling.seed % 2**64)

    @property
    def wanted(self) -> int:
        """How many of the likeliest tokens are returned with each token."""
        return self._sampling.logprobs or 0

    @property
    def has_grammar(self) -> bool:
        """Whether a grammar decides which tokens may come next, so that none can be guessed."""
        return self._grammar is not None

    @property
    def is_late(self) -> bool:
        """Whether it is still unknown which tokens may come next, so that scores would be useless."""
        return self._is_late and not self.is_ready()

    def is_ready(self, patience_s: float = 0) -> bool:
        """Waits up to `patience_s` for the grammar; True if a token can be chosen."""
        self._is_late = self._grammar is not None and not self._grammar.is_ready(patience_s)
        return not self._is_late

    def permit(self, token: int) -> int:
        """Chooses without scores: this token if it may come next, or else the first one that may."""
        if self._grammar is not None:
            allowed = self._grammar.allowed()
            token = token if allowed[token] else int(allowed.argmax())
        return self._accept(token)

    def _accept(self, token: int) -> int:
        self.is_over = self._grammar is not None and self._grammar.take(token)
        return token

    def choose(self, scores: Scores) -> tuple[int, float, tuple[tuple[int, float], ...]]:
        """Chooses a token; returns it, its log-probability, and the `wanted` likeliest tokens with theirs."""
        logprobs = log_softmax(scores)
        greedy = self._sampling.temperature == 0
        among = np.arange(len(scores))
        if self._grammar is not None:
            among = np.flatnonzero(self._grammar.allowed()[: len(scores)])
        token = int(among[np.argmax(scores[among])]) if greedy else self._draw(scores, among)
        likeliest: tuple[tuple[int, float], ...] = ()
        if count := self.wanted:
            likeliest = tuple((int(index), float(logprobs[index])) for index in largest(logprobs, count))
        return self._accept(token), float(logprobs[token]), likeliest

    def _draw(self, scores: Scores, kept: Any) -> int:
        if 0 < self._sampling.top_k < len(kept):
            kept = kept[largest(scores[kept], self._sampling.top_k)]
        ahead = scores[kept].astype(np.float64) - float(scores[kept].max())
        # A temperature next to 0 overflows to -inf, which leaves the likeliest token.
        with np.errstate(over="ignore"):
            chances = np.exp(log_softmax(ahead / self._sampling.temperature))
        if self._sampling.top_p < 1:
            order = np.argsort(-chances, kind="stable")
            # The likeliest tokens that together reach `top_p`, always at least one.
            count = int(np.searchsorted(np.cumsum(chances[order]), self._sampling.top_p)) + 1
            kept, chances = kept[order[:count]], chances[order[:count]]
        reached = np.cumsum(chances)
        place = np.searchsorted(reached, self._random.random() * reached[-1], side="right")
        return int(kept[min(int(place), len(kept) - 1)])


def log_softmax(scores: Any) -> Any:
    shifted = scores - scores.max()
    return shifted - np.log(np.exp(shifted).sum())


def largest(scores: Any, count: int) -> Any:
    """The places of the largest scores, largest first; equal ones in their order."""
    count = min(count, len(scores))
    places = np.argpartition(-scores, count - 1)[:count]
    return places[np.lexsort((places, -scores[places]))]
