"""Finds pickles in the bytes of a file, and what loading them would do, without loading any.

A pickle is looked for at the beginning of the file, whatever its name, after the end of each pickle, and at every
position where one could begin."""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import metadata

from marina.archiver.inspecting.known import known
from marina.archiver.inspecting.unpickler import BY_EXTENSION, PickleEffects, simulate_pickle

# Importing one of these modules has an effect even if nothing in it is called.
_EFFECTS_OF_IMPORT = frozenset({"__main__", "antigravity", "idlelib", "this", "turtledemo", "test", "webbrowser"})
# Files with these names are loaded as pickles, so it must be possible to analyse their content.
_PICKLE_NAMES = (".ckpt", ".dill", ".joblib", ".pck", ".pickle", ".pkl", ".pt", ".pth", ".sav")
# The header of protocol 2 and later, or imports in older protocols. Names have a largest length, and runs of brackets
# and imports are tried once, because otherwise the time would grow with the square of the file's size.
_NAMES = rb"[A-Za-z_][\w.]{0,99}+\n[A-Za-z_][\w.]{0,99}+\n"
_BEGINNING = re.compile(rb"\x80[\x02-\x05]|(?:(?<![(\]}])[(\]}]++)?(?:c" + _NAMES + rb")++")
# An import and call in one opcode; its arguments begin at a "(" within so many bytes before it.
_INSTANCE, _LONGEST_ARGUMENTS = re.compile(rb"i" + _NAMES), 200
# All pickles that could begin inside one file may have so many more opcodes than it has bytes. Lists of words and
# random data have far fewer.
_FURTHER_OPCODES = 1_000


@dataclass(frozen=True)
class Pickle:
    """A pickle in a file: the names that loading it imports, and the reasons why that runs code."""

    file: str
    imports: tuple[str, ...]
    runs_code: bool
    reasons: tuple[str, ...] = ()


def find_pickles(name: str, data: bytes, modules: frozenset[str] = frozenset()) -> Iterator[Pickle]:
    """The pickles in a file that are worth reporting; `modules` are those that the archive contains."""
    reported, simulated_to = False, 0
    for effects in _consecutive_pickles(data):
        pickle = _judge(name, effects, modules)
        # An incomplete one only looked like a pickle, and may have skipped the beginning of a real one.
        simulated_to = effects.end if effects.complete else simulated_to
        if pickle is not None:
            reported = True
            yield pickle
    if name.lower().endswith(_PICKLE_NAMES) and data and not reported and not _is_nested_format(data):
        yield Pickle(name, (), True, ("is named like a pickle, but cannot be analysed as one",))
    yield from _find_hidden(name, data, simulated_to, modules)


def _consecutive_pickles(data: bytes) -> Iterator[PickleEffects]:
    """The effects of the pickle at the beginning, and of each one that directly follows another."""
    at = 0
    while at < len(data):
        effects = simulate_pickle(data, at)
        yield effects
        if not effects.complete:
            return
        at = effects.end


def _judge(name: str, effects: PickleEffects, modules: frozenset[str]) -> Pickle | None:
    """The report on a pickle; None if it is not a pickle, or only plain data in a file that need not be a pickle."""
    refused = [value for value in effects.imports if not value.allowed]
    # Plain numbers may look like an extension code. An unregistered code ends the loading, and registering one would
    # itself show as a call.
    is_chance = not effects.complete and effects.protocol < 2
    reasons = [call for call in effects.calls if not (is_chance and call == BY_EXTENSION)]
    if effects.complete or any(value.module.partition(".")[0] in _EFFECTS_OF_IMPORT | modules for value in refused):
        reasons += [f"imports {value}" for value in refused]
    if effects.complete:
        reasons += effects.doubts
    elif not reasons and (refused or effects.imports) and effects.protocol >= 2:
        reasons.append("ends before it is complete")
    is_pickle = effects.complete and (effects.imports or effects.protocol >= 2 or name.lower().endswith(_PICKLE_NAMES))
    if not reasons and not is_pickle:
        return None
    return Pickle(name, _import_names(effects), bool(reasons), tuple(dict.fromkeys(reasons)))


@cache
def _importable_modules() -> frozenset[str]:
    """The modules that a worker could have: those of Python, of what is installed here, and of what a MAR may need."""
    may_need = {module.partition(".")[0] for module in known().modules}
    return sys.stdlib_module_names | metadata.packages_distributions().keys() | may_need | _EFFECTS_OF_IMPORT


def _find_hidden(name: str, data: bytes, start: int, modules: frozenset[str]) -> Iterator[Pickle]:
    """Pickles that begin further inside the file, if they would run code."""
    importable = _importable_modules() | modules
    left = len(data) + _FURTHER_OPCODES
    for at in _possible_beginnings(data, start):
        effects = simulate_pickle(data, at, left)
        left -= effects.opcodes
        if left < 0:
            yield Pickle(name, (), True, ("has too many places where a pickle could begin",))
            return
        # The lines of a list of words may look like imports, but of modules that nobody has.
        exists = any(value.module.partition(".")[0] in importable for value in effects.imports)
        is_chance = effects.protocol < 2 and not exists
        if effects.calls and not is_chance and not all(value.allowed for value in effects.imports):
            reasons = tuple(dict.fromkeys(effects.calls))
            yield Pickle(f"{name} at byte {at:,}", _import_names(effects), True, reasons)


def _possible_beginnings(data: bytes, start: int) -> Iterator[int]:
    yield from (match.start() for match in _BEGINNING.finditer(data, start))
    for match in _INSTANCE.finditer(data, start):
        earliest = max(start, match.start() - _LONGEST_ARGUMENTS)
        yield from (at for at in range(earliest, match.start()) if data[at] == ord("("))


def _import_names(effects: PickleEffects) -> tuple[str, ...]:
    return tuple(sorted(set(map(str, effects.imports))))


def _is_nested_format(data: bytes) -> bool:
    """Whether this is an archive, a compressed file or an array, whose content is inspected separately."""
    return data.startswith((b"PK\x03\x04", b"PK\x05\x06", b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x93NUMPY")) or (
        data[257:262] == b"ustar"
    )
