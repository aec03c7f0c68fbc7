"""Kubernetes quantities (`500m`, `2`, `2Gi`) as numbers."""

from __future__ import annotations

import re
from fractions import Fraction
from math import ceil

_SUFFIXES = {"": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_SUFFIXES |= {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_DECIMAL = ("k", "M", "G", "T", "P", "E")
_BINARY = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_WITH_FRACTIONS = ("n", "u", "m", "", *_DECIMAL)
_PATTERN = re.compile(r"(\d+(?:\.\d+)?)(m|k|M|G|T|Ki|Mi|Gi|Ti)?")


def quantity(text: str) -> float:
    """The number that a Kubernetes quantity stands for; ValueError says what is allowed."""
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise ValueError("allowed: a Kubernetes quantity such as `500m`, `2` or `2Gi`")
    return float(match[1]) * _SUFFIXES[match[2] or ""]


def canonical(text: str) -> str:
    """The quantity as the API server stores it: `2048Mi` becomes `2Gi`, `1000m` becomes `1`, `0.5` becomes `500m`.

    What is rendered otherwise looks changed to everybody who compares it with what is stored."""
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise ValueError("allowed: a Kubernetes quantity such as `500m`, `2` or `2Gi`")
    number, suffix = Fraction(match[1]), match[2] or ""
    if suffix.endswith("i"):
        size = ceil(number * 1024 ** (1 + _BINARY.index(suffix)))
        # Under 1024 the server counts in ones.
        if size >= 1024:
            return _reduced(size, 1024, ("", *_BINARY))
        return _reduced(size, 1000, ("", *_DECIMAL))
    nano = ceil(number * 1000 ** _WITH_FRACTIONS.index(suffix))
    return _reduced(nano, 1000, _WITH_FRACTIONS)


def _reduced(count: int, base: int, suffixes: tuple[str, ...]) -> str:
    """The smallest whole number, with the largest suffix that leaves it whole."""
    step = 0
    while count and count % base == 0 and step < len(suffixes) - 1:
        count, step = count // base, step + 1
    return f"{count}{suffixes[step] if count else ''}"
