"""Reads TorchServe's two configuration files as it does.

`config.properties` has two readers, `java.util.Properties` and the torchserve launcher's own loop; `model-config.yaml`
is YAML 1.1. Neither file is trusted: sizes and nesting are limited, and no tag creates an object."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marina.config.errors import InputError, Problem, SpecError
from marina.config.yaml_lines import read_yaml

_BLANKS = " \t\f"
_LINE = re.compile(r"\r\n|\r|\n")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)?", re.DOTALL)
_CONTROL = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
# Characters that a backslash may sensibly stand before; before any other, Java drops the backslash.
_ESCAPED_ON_PURPOSE = frozenset("tnrfu\\=:#! \t\"'")
_MAX_BYTES = 1_000_000
_HINT = "marina check --properties config.properties"


@dataclass(frozen=True)
class Property:
    """A key and its value, with lines joined and escapes replaced; `line` is where the key starts."""

    line: int
    key: str
    value: str
    lost: str = ""
    """The characters whose backslash Java drops."""
    malformed: bool = False
    """Whether it has a `\\u` without four hexadecimal digits, for which Java refuses the whole file."""


def load_properties(file: Path) -> dict[str, str]:
    """The values of a config.properties by key; InputError if it cannot be read."""
    return {entry.key: entry.value for entry in read_properties(read_bytes(file))}


def load_model_config(file: Path) -> dict[str, Any]:
    """The values of a model-config.yaml by key, also those that TorchServe passes on to the handler; InputError, with
    each line, if it cannot be read."""
    values, _, problems = read_model_config(read_bytes(file), str(file))
    if problems:
        raise SpecError(problems)
    return values


def read_bytes(file: Path) -> bytes:
    """The content of a configuration file; InputError if it is missing, or too long to be one."""
    try:
        with file.open("rb") as stream:
            data = stream.read(_MAX_BYTES + 1)
    except FileNotFoundError as err:
        raise InputError(f"{file}: no such file", hint=_HINT) from err
    except OSError as err:
        raise InputError(f"{file}: not readable: {err.strerror}") from err
    if len(data) > _MAX_BYTES:
        raise InputError(f"{file}: more than {_MAX_BYTES:,} bytes; such a file has a few thousand")
    return data


def read_properties(data: bytes) -> list[Property]:
    """Every property in the order of the file, including duplicates."""
    return [_entry(number, line) for number, line in _logical_lines(data.decode("latin-1"))]


def read_as_launcher(data: bytes) -> dict[str, str]:
    """The properties as `load_properties` of ts/model_server.py reads them: only `=`, no continuation lines, no
    escapes."""
    lines = map(str.strip, _LINE.split(data.decode("latin-1")))
    pairs = (line.split("=", 1) for line in lines if not line.startswith("#"))
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


def read_model_config(data: bytes, file: str) -> tuple[dict[str, Any], dict[str, int], list[Problem]]:
    """The values of a model-config.yaml and the line of each by key, and what in it cannot be read."""
    try:
        values, lines, problems = read_yaml(data.decode("utf-8-sig"), file)
    except UnicodeDecodeError as err:
        return {}, {}, [Problem(file, data.count(b"\n", 0, err.start) + 1, "", "not UTF-8")]
    except SpecError as err:
        return {}, {}, list(err.problems)
    return values, {str(place[0]): line for place, line in lines.items() if len(place) == 1}, problems
