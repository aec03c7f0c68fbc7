"""The form of a value in Redis: when it was made, and a checksum that binds it to its key.

What others wrote there, what was cut short, and what belongs to another key is not used. It is a checksum and no
signature: whoever may write to that Redis may write answers."""

from hashlib import blake2b

_MARK = b"marina.answer/1\n"
_SUM, _TIME = 16, 8


def seal(key: bytes, value: bytes, made_at: float) -> bytes:
    """`made_at` is seconds since the epoch."""
    content = int(made_at * 1000).to_bytes(_TIME, "big") + value
    return _MARK + _checksum(key, content) + content


def unseal(key: bytes, sealed: bytes) -> tuple[bytes, float] | None:
    """The value and when it was made; None for what is not the value of this key."""
    start = len(_MARK)
    content = sealed[start + _SUM :]
    if not sealed.startswith(_MARK) or len(content) < _TIME or sealed[start : start + _SUM] != _checksum(key, content):
        return None
    return content[_TIME:], int.from_bytes(content[:_TIME], "big") / 1000


def _checksum(key: bytes, content: bytes) -> bytes:
    return blake2b(content, digest_size=_SUM, key=key).digest()
