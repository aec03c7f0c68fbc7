"""Reads a `.properties` file as its two readers do: `java.util.Properties`, and the torchserve launcher's own loop."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_BLANKS = " \t\f"
_LINE = re.compile(r"\r\n|\r|\n")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)?", re.DOTALL)
_CONTROL = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
# Characters that a backslash may sensibly stand before; before any other, Java drops the backslash.
_ESCAPED_ON_PURPOSE = frozenset("tnrfu\\=:#! \t\"'")


@dataclass(frozen=True)
class Property:
    """A key and its value, with lines joined and escapes replaced; `line` is where the key starts."""

    line: int
    key: str
    value: str
    raw: str = ""
    """The joined line before escapes were replaced."""
    lost: str = ""
    """The characters whose backslash Java drops."""
    malformed: bool = False
    """Whether it has a `\\u` without four hexadecimal digits, for which Java refuses the whole file."""


def read_properties(text: str) -> list[Property]:
    """Every property in the order of the file, including duplicates."""
    return [_entry(number, line) for number, line in _logical_lines(text)]


def read_as_launcher(text: str) -> dict[str, str]:
    """The properties as `load_properties` of ts/model_server.py reads them: only `=`, no continuation lines, no
    escapes."""
    pairs = (line.split("=", 1) for line in map(str.strip, _LINE.split(text)) if not line.startswith("#"))
    return {pair[0].strip(): pair[1].strip() for pair in pairs if len(pair) == 2}


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    logical, start = "", 0
    for number, physical in enumerate(_LINE.split(text), 1):
        line = physical.lstrip(_BLANKS)
        if not logical:
            if not line or line[0] in "#!":
                continue
            start = number
        continues = _continues(line)
        logical += line[:-1] if continues else line
        if logical and not continues:
            yield start, logical
            logical = ""
    if logical:
        yield start, logical


def _continues(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _entry(number: int, line: str) -> Property:
    end = _key_end(line)
    rest = line[end:].lstrip(_BLANKS)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANKS)
    escapes = [match[1] or "" for match in _ESCAPE.finditer(line)]
    return Property(
        line=number,
        key=_unescape(line[:end]),
        value=_unescape(rest),
        raw=line,
        lost="".join(dict.fromkeys(part for part in escapes if len(part) == 1 and part not in _ESCAPED_ON_PURPOSE)),
        malformed="u" in escapes,
    )


def _key_end(line: str) -> int:
    escaped = False
    for index, char in enumerate(line):
        if not escaped and (char in "=:" or char in _BLANKS):
            return index
        escaped = char == "\\" and not escaped
    return len(line)


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda match: _character(match[1] or ""), text)


def _character(escape: str) -> str:
    if len(escape) == 5:
        return chr(int(escape[1:], 16))
    return _CONTROL.get(escape, escape)
