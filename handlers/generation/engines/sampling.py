"""From the scores of all tokens to one of them. Each sequence draws from a generator of its own: with a seed its answer
is the same whoever runs beside it."""

from typing import Any, TypeAlias

import numpy as np

from handlers.generation.engine import Sampling

Scores: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]


class Sampler:
    """The choices of one sequence."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        # OpenAI's seeds have a sign, and numpy's have none.
        self._random = np.random.default_rng(None if sampling.seed is None else sampling.seed % 2**64)

    @property
    def wanted(self) -> int:
        """How many of the likeliest tokens are to be told."""
        return self._sampling.logprobs

    def choose(self, scores: Scores) -> tuple[int, float, tuple[tuple[int, float], ...]]:
        """The token, its log-probability, and the likeliest tokens with theirs where they were asked for."""
        logprobs = log_softmax(scores)
        greedy = self._sampling.temperature == 0
        token = int(np.argmax(scores)) if greedy else self._draw(scores)
        likeliest: tuple[tuple[int, float], ...] = ()
        if count := self.wanted:
            likeliest = tuple((int(index), float(logprobs[index])) for index in largest(logprobs, count))
        return token, float(logprobs[token]), likeliest

    def _draw(self, scores: Scores) -> int:
        kept = np.arange(len(scores))
        if 0 < self._sampling.top_k < len(scores):
            kept = largest(scores, self._sampling.top_k)
        ahead = scores[kept].astype(np.float64) - float(scores.max())
        # Next to nothing of a temperature leaves the likeliest, and no number that is none.
        with np.errstate(over="ignore"):
            chances = np.exp(log_softmax(ahead / self._sampling.temperature))
        if self._sampling.top_p < 1:
            order = np.argsort(-chances, kind="stable")
            # The likeliest that together reach `top_p`: always at least one.
            count = int(np.searchsorted(np.cumsum(chances[order]), self._sampling.top_p)) + 1
            kept, chances = kept[order[:count]], chances[order[:count]]
        reached = np.cumsum(chances)
        place = np.searchsorted(reached, self._random.random() * reached[-1], side="right")
        return int(kept[min(int(place), len(kept) - 1)])


def log_softmax(scores: Any) -> Any:
    shifted = scores - scores.max()
    return shifted - np.log(np.exp(shifted).sum())


def largest(scores: Any, count: int) -> Any:
    """The places of the largest, from the largest on; equal ones in their order."""
    count = min(count, len(scores))
    places = np.argpartition(-scores, count - 1)[:count]
    return places[np.lexsort((places, -scores[places]))]
