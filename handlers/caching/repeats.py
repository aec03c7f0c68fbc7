"""Finds the requests of a batch that need not be computed: those that were answered before, and those that equal
another one of the same batch."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import orjson

from marina.handlers.caching.cache import AnswerCache, CacheControl, parse_cache_control
from marina.handlers.request import Answer, Request

# The headers that every answer may depend on.
_HEADERS = ("accept", "content-encoding", "content-type", "inference-header-content-length")


@dataclass(frozen=True)
class Repeats:
    """What the cache knows about a batch; places are positions in the batch."""

    known: Mapping[int, Answer]
    """Cached answers by place."""
    same_as: Sequence[int]
    """For each request, the place of the request whose answer it gets; often its own."""
    keys: Mapping[int, bytes]
    """The keys under which new answers may be stored, by place."""

    @property
    def places(self) -> list[int]:
        """The places of the requests that must be computed."""
        return [place for place, same in enumerate(self.same_as) if place == same and place not in self.known]


def find_repeats(
    cache: AnswerCache, requests: Sequence[Request | None], protocol_header: str, headers: Sequence[str] = ()
) -> Repeats:
    """Looks the requests of a batch up in the cache; None stands for one that could not be read. `protocol_header` is
    the header in which the door names the protocol, and `headers` are further ones that answers depend on."""
    keys: dict[int, bytes] = {}
    controls: dict[int, CacheControl] = {}
    for place, request in enumerate(requests):
        if request is None:
            continue
        control = controls[place] = parse_cache_control(request.headers)
        if control.may_read or control.may_store:
            keys[place] = _key(cache.package, request, protocol_header, headers)
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
    """Serialises an answer: content type and headers as a line of JSON, then the body."""
    return orjson.dumps([answer.content_type, dict(answer.headers)]) + b"\n" + answer.body


def _unpack_answer(value: bytes | None) -> Answer | None:
    if value is None:
        return None
    head, _, body = value.partition(b"\n")
    content_type, headers = orjson.loads(head)
    return Answer(body, content_type, headers)


def _key(package: str, request: Request, protocol_header: str, headers: Sequence[str]) -> bytes:
    """The key of a request's answer. The body counts byte for byte: normalising JSON would cost more than running a
    small model."""
    parts: list[str | bytes | bytearray] = [request.door_header(protocol_header) or "", request.content_type]
    for name in (*_HEADERS, *headers):
        value = request.headers.get(name)
        # A missing header must not count as an empty one.
        parts.append("-" if value is None else f"+{value}")
    for name in sorted(request.parts):
        parts += [name, _bytes(request.parts[name])]
    return answer_key(package, parts)


def answer_key(package: str, parts: Iterable[str | bytes | bytearray]) -> bytes:
    """The key of an answer: a hash of the package and of everything in the request that the answer depends on. Each
    part is hashed with its length, so that requests that only divide the same bytes differently get different keys."""
    digest = blake2b(digest_size=32)
    for part in (package, *parts):
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.digest()


def _bytes(value: Any) -> bytes | bytearray | str:
    return value if isinstance(value, bytes | bytearray | str) else orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
