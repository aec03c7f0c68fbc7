"""What Python in an archive may use without a person reading it first, from `known.txt`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path

_SECTION = re.compile(r"^\[([^\]]+)\]$", re.MULTILINE)
_COMMENT = re.compile(r"^#.*$", re.MULTILINE)


@dataclass(frozen=True)
class Rule:
    """How a function has to be called; `known.txt` says what each kind means."""

    kind: str
    words: tuple[str, ...]


@dataclass(frozen=True)
class Known:
    """The sections of `known.txt`."""

    builtins: frozenset[str]
    values: frozenset[str]
    acting: frozenset[str]
    stored: frozenset[str]
    calls: dict[str, Rule]
    modules: dict[str, frozenset[str]]


@cache
def known() -> Known:
    """The file, read once."""
    text = _COMMENT.sub("", Path(__file__).with_name("known.txt").read_text("utf-8"))
    parts = _SECTION.split(text)[1:]
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    lines = (line.split() for line in sections.pop("calls").splitlines() if line)
    calls = {name: Rule(kind, tuple(words)) for name, kind, *words in lines}
    builtins, values, acting, stored = (
        frozenset(sections.pop(name).split()) for name in ("builtins", "values", "acting", "stored")
    )
    modules = {module: frozenset(names.split()) for title, names in sections.items() for module in title.split()}
    for module in tuple(modules):
        for parent in accumulate(module.split(".")[:-1], "{}.{}".format):
            modules.setdefault(parent, frozenset())
    return Known(builtins, values, acting, stored, calls, modules)
