"""The name of an answer: a hash of the package and of everything in the request that the answer depends on."""

from collections.abc import Iterable
from hashlib import blake2b


def key_of(package: str, parts: Iterable[str | bytes | bytearray]) -> bytes:
    """Each part goes in with its length, so that no two requests differ only in where one part ends."""
    digest = blake2b(digest_size=32)
    for part in (package, *parts):
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.digest()
