"""Finds pickles in the bytes of a file and what loading them would do, without ever loading one.

A pickle is looked for at the beginning whatever the file is called, behind each pickle that ends, and at every place
in the file where one could begin.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from archiver.inspecting.unpickler import BY_EXTENSION, Stream, follow

# Loading one of these has an effect although nothing of it is called.
_EFFECTS_OF_IMPORT = frozenset({"__main__", "antigravity", "idlelib", "this", "turtledemo", "test", "webbrowser"})
# Files of these names are loaded as pickles, so their content has to be one that can be followed.
_PICKLE_NAMES = (".ckpt", ".dill", ".joblib", ".pck", ".pickle", ".pkl", ".pt", ".pth", ".sav")
# The header of protocol 2 and later, or what imports in the older ones, at any place of a file.
_BEGINNING = re.compile(rb"\x80[\x02-\x05]|[(\]}]*c[A-Za-z_][\w.]*\n[A-Za-z_][\w.]*\n|\([^\n]{0,200}i[A-Za-z_][\w.]*\n")
# For all that could begin inside of one file; random numbers come nowhere near it.
_MOST_OPCODES_INSIDE = 3_000_000


@dataclass(frozen=True)
class Pickle:
    """A pickle in a file: the names it imports when it is loaded, and what it does beyond making tensors."""

    file: str
    imports: tuple[str, ...]
    runs_code: bool
    reasons: tuple[str, ...] = ()


def find_pickles(name: str, data: bytes, modules: frozenset[str] = frozenset()) -> Iterator[Pickle]:
    """The pickles in a file, each where it says something; `modules` are those that the archive brings itself."""
    shown, seen_to = False, 0
    for stream in _streams(data):
        pickle = _judged(name, stream, modules)
        # What only looks like the beginning of one may have swallowed the beginning of a real one.
        seen_to = stream.end if stream.complete else seen_to
        if pickle is not None:
            shown = True
            yield pickle
    if name.lower().endswith(_PICKLE_NAMES) and data and not shown and not _is_followed_otherwise(data):
        yield Pickle(name, (), True, ("cannot be followed as a pickle, and its name says that it is one",))
    yield from _hidden(name, data, seen_to)


def _streams(data: bytes) -> Iterator[Stream]:
    """The pickle at the beginning, and those that follow each other from there."""
    at = 0
    while at < len(data):
        stream = follow(data, at)
        yield stream
        if not stream.complete:
            return
        at = stream.end


def _judged(name: str, stream: Stream, modules: frozenset[str]) -> Pickle | None:
    """What is to be said of a stream; None when it is not a pickle, or only plain data in a file that need not be
    one."""
    refused = [value for value in stream.imports if not value.allowed]
    # Numbers begin like this too: a code that nobody has registered ends the loading, and registering is a call itself.
    is_chance = not stream.complete and stream.protocol < 2
    reasons = [call for call in stream.calls if not (is_chance and call == BY_EXTENSION)]
    if stream.complete or any(value.module.partition(".")[0] in _EFFECTS_OF_IMPORT | modules for value in refused):
        reasons += [f"imports {value}" for value in refused]
    if stream.complete:
        reasons += stream.doubts
    elif not reasons and (refused or stream.imports) and stream.protocol >= 2:
        reasons.append("ends before it is complete")
    is_pickle = stream.complete and (stream.imports or stream.protocol >= 2 or name.lower().endswith(_PICKLE_NAMES))
    if not reasons and not is_pickle:
        return None
    imports = tuple(sorted(set(map(str, stream.imports))))
    return Pickle(name, imports, bool(reasons), tuple(dict.fromkeys(reasons)))


def _hidden(name: str, data: bytes, start: int) -> Iterator[Pickle]:
    """Pickles that begin further inside: only those that would do something."""
    left = _MOST_OPCODES_INSIDE
    for match in _BEGINNING.finditer(data, start):
        stream = follow(data, match.start(), left)
        left -= stream.opcodes
        if left < 0:
            yield Pickle(name, (), True, ("has too many places where a pickle could begin",))
            return
        refused = [value for value in stream.imports if not value.allowed]
        if refused and stream.calls:
            imports = tuple(sorted(set(map(str, stream.imports))))
            yield Pickle(f"{name} at byte {match.start():,}", imports, True, tuple(dict.fromkeys(stream.calls)))


def _is_followed_otherwise(data: bytes) -> bool:
    """Archives, compressed files and arrays, whose content is looked at by itself."""
    return data.startswith((b"PK\x03\x04", b"PK\x05\x06", b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x93NUMPY")) or (
        data[257:262] == b"ustar"
    )
