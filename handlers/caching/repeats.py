"""Which requests of a batch need not be computed: those that were answered before, and those that another of the same
batch asks too."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import orjson

from handlers.caching.cache import AnswerCache, CacheControl, parse_cache_control
from handlers.request import Answer, Request

# What of a request's head an answer depends on.
_HEADERS = ("accept", "content-type", "inference-header-content-length")


@dataclass(frozen=True)
class Repeats:
    """By the places of a batch: answers that are known, whose answer each request gets, and the keys under which new
    ones are kept."""

    known: Mapping[int, Answer]
    same_as: Sequence[int]
    keys: Mapping[int, bytes]

    @property
    def places(self) -> list[int]:
        """The requests that are computed."""
        return [place for place, same in enumerate(self.same_as) if place == same and place not in self.known]


def find_repeats(
    cache: AnswerCache, requests: Sequence[Request | None], noted: str, headers: Sequence[str] = ()
) -> Repeats:
    """None stands for what could not be read. `noted` is the door's header that says the protocol, and `headers` are
    further ones that answers depend on."""
    keys: dict[int, bytes] = {}
    controls: dict[int, CacheControl] = {}
    for place, request in enumerate(requests):
        if request is None:
            continue
        control = controls[place] = parse_cache_control(request.headers)
        if control.may_read or control.may_store:
            keys[place] = _key(cache.package, request, noted, headers)
    takers = [place for place, control in controls.items() if control.may_read]
    first: dict[bytes, int] = {}
    same_as = list(range(len(requests)))
    for place in takers:
        same_as[place] = first.setdefault(keys[place], place)
    values = cache.find(list(first))
    known = {
        place: answer for place, value in zip(first.values(), values, strict=True) if (answer := _unpack_answer(value))
    }
    counts = cache.metrics.requests
    counts["batch"].inc(len(takers) - len(first))
    counts["computed"].inc(len(first) - len(known))
    counts["bypassed"].inc(len(controls) - len(takers))
    return Repeats(known, same_as, {place: key for place, key in keys.items() if controls[place].may_store})


def pack_answer(answer: Answer) -> bytes:
    """An answer as it is kept: its head as a line of JSON, then its body."""
    return orjson.dumps([answer.content_type, dict(answer.headers)]) + b"\n" + answer.body


def _unpack_answer(value: bytes | None) -> Answer | None:
    if value is None:
        return None
    head, _, body = value.partition(b"\n")
    content_type, headers = orjson.loads(head)
    return Answer(body, content_type, headers)


def _key(package: str, request: Request, noted: str, headers: Sequence[str]) -> bytes:
    """The body is taken as it came, byte for byte: to bring JSON into one form would cost more than a small model."""
    parts: list[str | bytes | bytearray] = [request.door_header(noted) or "", request.content_type]
    for name in (*_HEADERS, *headers):
        value = request.headers.get(name)
        # A header that is not there is another than an empty one.
        parts.append("-" if value is None else f"+{value}")
    for name in sorted(request.parts):
        parts += [name, _bytes(request.parts[name])]
    return answer_key(package, parts)


def answer_key(package: str, parts: Iterable[str | bytes | bytearray]) -> bytes:
    """The name of an answer: a hash of the package and of everything in the request that the answer depends on. Each
    part goes in with its length, so that no two requests differ only in where one part ends."""
    digest = blake2b(digest_size=32)
    for part in (package, *parts):
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.digest()


def _bytes(value: Any) -> bytes | bytearray | str:
    return value if isinstance(value, bytes | bytearray | str) else orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
