"""Kubernetes quantities (`500m`, `2`, `2Gi`) as numbers."""

import re
from fractions import Fraction
from math import ceil

_DECIMAL = ("k", "M", "G", "T", "P", "E")
_BINARY = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_WITH_FRACTIONS = ("n", "u", "m", "", *_DECIMAL)
_EXPONENTS = ("e-9", "e-6", "e-3", "", "e3", "e6", "e9", "e12", "e15", "e18")
_PATTERN = re.compile(r"([0-9]{1,30}\.?[0-9]{0,30}|\.[0-9]{1,30})([eE][+-]?[0-9]{1,2}|[numkMGTPE]|[KMGTPE]i)?")
# The largest that Kubernetes keeps.
_LARGEST = 2**63 - 1


def quantity(text: str) -> float:
    """The value of a Kubernetes quantity; ValueError says what is allowed."""
    return float(_parse(text)[0])


def canonical(text: str) -> str:
    """The quantity as the API server stores it: `2048Mi` becomes `2Gi`, `1000m` becomes `1`, `0.5` becomes `500m`.

    Any other form would show up as a difference between the rendered and the stored object."""
    number, suffix = _parse(text)
    if suffix.endswith("i"):
        size = ceil(number)
        # Below 1024 the server uses decimal suffixes.
        if size >= 1024:
            return _reduced(size, 1024, ("", *_BINARY))
        return _reduced(size, 1000, ("", *_DECIMAL))
    # A quantity with an exponent keeps its exponent.
    return _reduced(ceil(number * 10**9), 1000, _EXPONENTS if suffix[1:] else _WITH_FRACTIONS)


def _parse(text: str) -> tuple[Fraction, str]:
    """The value, and the suffix or exponent that it was written with."""
    match = _PATTERN.fullmatch(text)
    number, suffix = (Fraction(match[1]), match[2] or "") if match else (Fraction(_LARGEST + 1), "")
    if suffix in _BINARY:
        number *= 1024 ** (1 + _BINARY.index(suffix))
    elif suffix in _WITH_FRACTIONS:
        number *= Fraction(1000) ** (_WITH_FRACTIONS.index(suffix) - 3)
    else:
        number *= Fraction(10) ** int(suffix[1:])
    if number > _LARGEST:
        raise ValueError("allowed: a Kubernetes quantity such as `500m`, `2` or `2Gi`")
    return number, suffix


def _reduced(count: int, base: int, suffixes: tuple[str, ...]) -> str:
    """The count with the largest suffix that leaves a whole number."""
    step = 0
    while count and count % base == 0 and step < len(suffixes) - 1:
        count, step = count // base, step + 1
    return f"{count}{suffixes[step] if count else ''}"
