"""The format of a value in Redis: a mark, a checksum over key and content, the time when it was made, the value.

Values that others wrote, that were cut short or that belong to another key are rejected. The checksum is not a
signature: whoever can write to that Redis can forge answers."""

from hashlib import blake2b

_MARK = b"marina.answer/1\n"
_SUM, _TIME = 16, 8


def seal(key: bytes, value: bytes, made_at: float) -> bytes:
    """Wraps a value for Redis; `made_at` is seconds since the epoch."""
    content = int(made_at * 1000).to_bytes(_TIME, "big") + value
    return _MARK + _checksum(key, content) + content


def unseal(key: bytes, sealed: bytes) -> tuple[bytes, float] | None:
    """The value and when it was made, in seconds since the epoch; None if this is not a valid value of the key."""
    start = len(_MARK)
    content = sealed[start + _SUM :]
    if not sealed.startswith(_MARK) or len(content) < _TIME or sealed[start : start + _SUM] != _checksum(key, content):
        return None
    return content[_TIME:], int.from_bytes(content[:_TIME], "big") / 1000


def _checksum(key: bytes, content: bytes) -> bytes:
    return blake2b(content, digest_size=_SUM, key=key).digest()
