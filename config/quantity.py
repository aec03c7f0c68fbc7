"""Kubernetes quantities (`500m`, `2`, `2Gi`) as numbers."""

from __future__ import annotations

import re

_SUFFIXES = {"": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_SUFFIXES |= {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_PATTERN = re.compile(r"(\d+(?:\.\d+)?)(m|k|M|G|T|Ki|Mi|Gi|Ti)?")


def quantity(text: str) -> float:
    """The number that a Kubernetes quantity stands for; ValueError says what is allowed."""
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise ValueError("allowed: a Kubernetes quantity such as `500m`, `2` or `2Gi`")
    return float(match[1]) * _SUFFIXES[match[2] or ""]
