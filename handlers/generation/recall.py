"""Answers that were written before, for those who ask the same again: of requests whose answer does not depend on
chance, because they take the likeliest token each time or name a seed.

What is kept is pieces of text with their tokens, so that it is given as a stream or whole, as chat or completion, as
each client asks."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import orjson

from handlers.caching import AnswerCache, CacheControl, answer_key
from handlers.generation.engine import Sampling, Token
from handlers.generation.sequence import End, Piece
from handlers.generation.wishes import Asked


@dataclass
class Written:
    """An answer that is there to its end."""

    pieces: list[Piece]

    def __post_init__(self) -> None:
        self.end: End | None = self.pieces[-1].end

    @property
    def is_ready(self) -> bool:
        """Whether there is something that its client has not got."""
        return bool(self.pieces)

    def take(self) -> list[Piece]:
        """What its client has not got yet."""
        pieces, self.pieces = self.pieces, []
        return pieces


@dataclass
class Keeping:
    """An answer that is being written, and is kept when it is complete."""

    key: bytes
    max_tokens: int
    pieces: list[Piece] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Whether it ended by itself: one that a deadline has cut off must not answer another request."""
        count = sum(len(piece.tokens) for piece in self.pieces)
        return self.pieces[-1].end == "stop" or (self.pieces[-1].end == "length" and count >= self.max_tokens)


class Recall:
    """The answers of one model; without a cache it knows none and keeps none."""

    def __init__(self, cache: AnswerCache | None) -> None:
        self._cache = cache

    def find(self, requests: Sequence[tuple[Asked, CacheControl]]) -> list[Written | Keeping | None]:
        """For each request its answer, or what keeps it when it is written; one question for all of them."""
        results: list[Written | Keeping | None] = [None] * len(requests)
        if self._cache is None:
            return results
        keys = {
            place: self._key(asked)
            for place, (asked, control) in enumerate(requests)
            if _is_certain(asked) and (control.may_read or control.may_store)
        }
        takers = [place for place in keys if requests[place][1].may_read]
        for place, key in keys.items():
            if requests[place][1].may_store:
                results[place] = Keeping(key, requests[place][0].max_tokens)
        for place, value in zip(takers, self._cache.find([keys[place] for place in takers]), strict=True):
            if value is not None:
                results[place] = Written(_unpacked(value))
        self._cache.metrics.requests["bypassed"].inc(
            sum(_is_certain(asked) and not control.may_read for asked, control in requests)
        )
        return results

    def count(self, result: str) -> None:
        """Where an answer comes from that was not known."""
        if self._cache is not None:
            self._cache.metrics.requests[result].inc()

    def keep(self, keeping: Keeping) -> None:
        """For those who ask the same later, if it is whole."""
        if self._cache is not None and keeping.is_whole:
            self._cache.store(keeping.key, _packed(keeping.pieces))

    def _key(self, asked: Asked) -> bytes:
        """All that was asked for, but for the form in which it is given."""
        assert self._cache is not None
        sampling = asked.sampling
        if sampling.temperature == 0:
            # The likeliest token is the same whatever else is said of chance.
            sampling = Sampling(temperature=0, logprobs=sampling.logprobs, ignore_eos=sampling.ignore_eos)
        plain = replace(
            asked,
            form="completion",
            sampling=sampling,
            stream=False,
            include_usage=False,
            with_logprobs=False,
            usage_so_far=False,
        )
        return answer_key(self._cache.package, ["text", repr(plain)])


def _is_certain(asked: Asked) -> bool:
    return asked.sampling.temperature == 0 or asked.sampling.seed is not None


def _packed(pieces: Sequence[Piece]) -> bytes:
    return orjson.dumps(
        [
            [piece.text, [[token.token, token.logprob, token.likeliest] for token in piece.tokens], piece.end]
            for piece in pieces
        ]
    )


def _unpacked(value: bytes) -> list[Piece]:
    return [
        Piece(text, tuple(Token("", at, score, tuple(map(tuple, likeliest))) for at, score, likeliest in tokens), end)
        for text, tokens, end in orjson.loads(value)
    ]
