"""Chooses a token by the scores of all tokens. Each sequence has its own random generator, so that with a seed and the
same scores its answer is the same, whatever runs beside it.

A vocabulary may have 150,000 tokens, so nothing here sorts all of them, and log-probabilities are only computed when
they are asked for."""

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from marina.handlers.generation.engine import Sampling

Scores: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]
Places: TypeAlias = np.ndarray[Any, np.dtype[np.intp]]

# A temperature below this one leaves the likeliest token alone, as this one does.
_COLDEST = 1e-30
# Tokens are added up in blocks of this size, and then only those of one block.
_BLOCK = 512


class Sampler:
    """Chooses the tokens of one sequence. `is_over` is True when its grammar allows nothing more."""

    def __init__(self, sampling: Sampling, prompt: Sequence[int] = ()) -> None:
        self._sampling, self._grammar = sampling, sampling.grammar
        # How often each token was written; those of the prompt, 0 times, if they are to be penalised, too.
        self._written = dict.fromkeys(prompt if sampling.repetition != 1 else (), 0)
        self._count = 0
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
    def judges_prompt(self) -> bool:
        """Whether the log-probabilities of the prompt's tokens are asked for, too."""
        return self._sampling.prompt_logprobs

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
        self._count += 1
        if self._sampling.changes_scores:
            self._written[token] = self._written.get(token, 0) + 1
        self.is_over = self._grammar is not None and self._grammar.take(token)
        return token

    def choose(self, scores: Scores) -> tuple[int, float, tuple[tuple[int, float], ...]]:
        """Chooses a token; returns it, its log-probability, which is NaN if none was asked for, and the `wanted`
        likeliest tokens with theirs."""
        permitted, top_k = scores, self._sampling.top_k
        if self._sampling.changes_scores:
            permitted = self._changed(scores)
        if self._grammar is not None:
            allowed, changed = self._grammar.allowed()[: len(scores)], permitted
            permitted = np.full_like(scores, -np.inf)
            np.copyto(permitted[: len(allowed)], changed[: len(allowed)], where=allowed)
        is_cut = self._sampling.temperature > 0 and 0 < top_k < len(scores)
        kept = _largest(permitted, top_k) if is_cut else None
        token = int(permitted.argmax()) if self._sampling.temperature == 0 else self._draw(permitted, kept)
        if self._sampling.logprobs is None:
            return self._accept(token), math.nan, ()
        known = None if permitted is not scores or self.wanted > top_k else kept
        return (self._accept(token), *self.judge(scores, token, known))

    def judge(
        self, scores: Scores, token: int, kept: Places | None = None
    ) -> tuple[float, tuple[tuple[int, float], ...]]:
        """The log-probability of a token, and the `wanted` likeliest tokens with theirs, which may be among `kept`."""
        whole = scores.max() + np.log(_weights(scores, 1.0).sum())
        kept = _largest(scores, self.wanted) if kept is None else kept
        likeliest = kept[np.argsort(-scores[kept], kind="stable")][: self.wanted]
        return float(scores[token] - whole), tuple((int(at), float(scores[at] - whole)) for at in likeliest)

    def _changed(self, scores: Scores) -> Scores:
        """The scores with penalties and biases."""
        changed, sampling = scores.copy(), self._sampling
        if known := [token for token in self._written if token < len(scores)]:
            counts = np.array([self._written[token] for token in known], dtype=np.float32)
            old = changed[known]
            old = np.where(old > 0, old / sampling.repetition, old * sampling.repetition)
            changed[known] = old - sampling.presence * (counts > 0) - sampling.frequency * counts
        for token, bias in sampling.bias:
            changed[token] += bias
        if self._count < sampling.min_tokens:
            changed[list(sampling.ends)] = -np.inf
        return changed

    def _draw(self, scores: Scores, kept: Places | None) -> int:
        weights = _weights(scores if kept is None else scores[kept], max(self._sampling.temperature, _COLDEST))
        if self._sampling.min_p:
            weights[weights < self._sampling.min_p] = 0
        place = _pick(weights, self._random) if self._sampling.top_p >= 1 else self._pick_likely(weights)
        return place if kept is None else int(kept[place])

    def _pick_likely(self, weights: Scores) -> int:
        """The place of one of the likeliest tokens that together have the share `top_p` of all weights, at least one.

        They are not searched for: a token is drawn among more than those, and again if it is not one of them, which
        gives each of them the same chance."""
        needed, kept = self._sampling.top_p * float(weights.sum()), None
        while True:
            place = _pick(weights, self._random)
            likelier = weights > weights[place]
            # Of equal ones the first are taken first.
            likelier[:place] |= weights[:place] == weights[place]
            ahead = weights[likelier]
            if not len(ahead) or float(ahead.sum()) < needed:
                return place if kept is None else int(kept[place])
            kept, weights = np.flatnonzero(likelier) if kept is None else kept[likelier], ahead


def _weights(scores: Scores, temperature: float) -> Scores:
    """What the chances of the tokens are in proportion to; that of the likeliest is 1."""
    weights: Scores = scores - scores.max()
    # A temperature next to 0 overflows to -inf, which leaves the likeliest token.
    with np.errstate(over="ignore"):
        weights /= temperature
    np.exp(weights, out=weights)
    return weights


def _pick(weights: Scores, random: np.random.Generator) -> int:
    """A place, drawn with chances in proportion to the weights."""
    block, rest = _reach(np.add.reduceat(weights, np.arange(0, len(weights), _BLOCK)), random.random())
    return block * _BLOCK + _reach(weights[block * _BLOCK : (block + 1) * _BLOCK], rest)[0]


def _reach(masses: Scores, share: float) -> tuple[int, float]:
    """Where the masses, added one after the other, reach this share of their sum, and at which share of that one."""
    reached = np.cumsum(masses, dtype=np.float64)
    wanted = share * reached[-1]
    place = int(np.searchsorted(reached, wanted, side="right"))
    return place, float((wanted - (reached[place - 1] if place else 0.0)) / masses[place])


def _largest(scores: Scores, count: int) -> Places:
    """The places of the `count` largest scores, and of others that equal the least of them."""
    count = min(count, len(scores))
    return np.flatnonzero(scores >= np.partition(scores, -count)[-count] if count else ())
