"""The names that Python in an archive may use without a person reviewing it first, from `known.txt`."""

import re
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path

_SECTION = re.compile(r"^\[([^\]]+)\]$", re.MULTILINE)
_COMMENT = re.compile(r"^#.*$", re.MULTILINE)


@dataclass(frozen=True)
class CallRule:
    """How a function must be called to be harmless; `known.txt` explains each kind."""

    kind: str
    words: tuple[str, ...]


@dataclass(frozen=True)
class KnownNames:
    """The sections of `known.txt`, which explains them."""

    builtins: frozenset[str]
    values: frozenset[str]
    acting: frozenset[str]
    stored: frozenset[str]
    calls: dict[str, CallRule]
    modules: dict[str, frozenset[str]]


@cache
def known() -> KnownNames:
    """The content of `known.txt`, which is read only once."""
    text = _COMMENT.sub("", Path(__file__).with_name("known.txt").read_text("utf-8"))
    parts = _SECTION.split(text)[1:]
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    lines = (line.split() for line in sections.pop("calls").splitlines() if line)
    calls = {name: CallRule(kind, tuple(words)) for name, kind, *words in lines}
    builtins, values, acting, stored = (
        frozenset(sections.pop(name).split()) for name in ("builtins", "values", "acting", "stored")
    )
    modules = {module: frozenset(names.split()) for title, names in sections.items() for module in title.split()}
    for module in tuple(modules):
        for parent in accumulate(module.split(".")[:-1], "{}.{}".format):
            modules.setdefault(parent, frozenset())
    return KnownNames(builtins, values, acting, stored, calls, modules)
