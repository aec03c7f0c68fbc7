"""Complete answers that are kept for the same request again.

Only answers that do not depend on chance are kept: of requests with temperature 0 or a seed. They are kept as pieces of
text with their tokens, so that each client can get one streamed or whole, as chat or as completion."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import orjson

from marina.handlers.caching import AnswerCache, CacheControl, answer_key
from marina.handlers.generation.engine import Token
from marina.handlers.generation.parameters import Parameters
from marina.handlers.generation.sequence import End, Piece


@dataclass
class CachedAnswer:
    """A complete answer from the cache, an `AnswerSource`."""

    pieces: list[Piece]

    def __post_init__(self) -> None:
        self.end: End | None = self.pieces[-1].end

    @property
    def is_ready(self) -> bool:
        return bool(self.pieces)

    def take(self) -> list[Piece]:
        pieces, self.pieces = self.pieces, []
        return pieces


@dataclass
class AnswerRecording:
    """The pieces so far of an answer that is being written, to be cached under `key` when it is complete."""

    key: bytes
    max_tokens: int
    pieces: list[Piece] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """False if a deadline cut the answer off: then it is no answer to a request without that deadline."""
        count = sum(len(piece.tokens) for piece in self.pieces)
        return self.pieces[-1].end == "stop" or (self.pieces[-1].end == "length" and count >= self.max_tokens)


class TextCache:
    """The cached answers of one model; with `cache` None it finds and stores nothing."""

    def __init__(self, cache: AnswerCache | None) -> None:
        self._cache = cache

    def find(self, requests: Sequence[tuple[Parameters, CacheControl]]) -> list[CachedAnswer | AnswerRecording | None]:
        """For each request its cached answer, a recording if its answer is to be cached, or None. One look-up for all
        of them."""
        results: list[CachedAnswer | AnswerRecording | None] = [None] * len(requests)
        if self._cache is None:
            return results
        keys = {
            place: self._key(parameters)
            for place, (parameters, control) in enumerate(requests)
            if _is_deterministic(parameters) and (control.may_read or control.may_store)
        }
        takers = [place for place in keys if requests[place][1].may_read]
        for place, key in keys.items():
            if requests[place][1].may_store:
                results[place] = AnswerRecording(key, requests[place][0].max_tokens)
        for place, value in zip(takers, self._cache.find([keys[place] for place in takers]), strict=True):
            if value is not None:
                results[place] = CachedAnswer(_unpack(value))
        self._cache.metrics.requests["bypassed"].inc(
            sum(_is_deterministic(parameters) and not control.may_read for parameters, control in requests)
        )
        return results

    def count(self, result: str) -> None:
        """Counts where an answer that was not in the cache came from: `batch` or `computed`."""
        if self._cache is not None:
            self._cache.metrics.requests[result].inc()

    def store(self, recording: AnswerRecording) -> None:
        """Caches the recorded answer if it is whole."""
        if self._cache is not None and recording.is_whole:
            self._cache.store(recording.key, _pack(recording.pieces))

    def _key(self, parameters: Parameters) -> bytes:
        """The key of a request: all parameters except those that only change how its answer is delivered."""
        assert self._cache is not None
        sampling = parameters.sampling
        if sampling.temperature == 0:
            # The other parameters of chance do not change which token is the likeliest.
            sampling = replace(sampling, top_p=1.0, top_k=0, min_p=0.0, seed=None)
        plain = replace(
            parameters,
            endpoint="completion",
            sampling=sampling,
            stream=False,
            include_usage=False,
            with_logprobs=False,
            usage_so_far=False,
            tools=None,
            reading=None,
        )
        return answer_key(self._cache.package, ["text", repr(plain)])


def _is_deterministic(parameters: Parameters) -> bool:
    return parameters.sampling.temperature == 0 or parameters.sampling.seed is not None


def _pack(pieces: Sequence[Piece]) -> bytes:
    return orjson.dumps(
        [
            [piece.text, [[token.token, token.logprob, token.likeliest] for token in piece.tokens], piece.end]
            for piece in pieces
        ]
    )


def _unpack(value: bytes) -> list[Piece]:
    return [
        Piece(text, tuple(Token("", at, score, tuple(map(tuple, likeliest))) for at, score, likeliest in tokens), end)
        for text, tokens, end in orjson.loads(value)
    ]
