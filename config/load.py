"""Reads a spec file into a frozen `Spec`, or raises all its errors at once.

A wrong field does not hide other errors: it is removed, the rest is completed with defaults, and the rules about
combinations still check every field that is right."""

import json
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from marina.config.combinations import find_conflicts
from marina.config.errors import InputError, Problem, SpecError, reason_of
from marina.config.sections import Text
from marina.config.spec import Spec
from marina.config.validation_errors import error_text, field_location, is_section, meant_field
from marina.config.yaml_lines import Location, line_of, read_yaml

_TYPES = ("int_type", "literal_error")
_MAX_CHARACTERS = 1_000_000
# Values for required fields that are missing or wrong, so that the rules about combinations can still run.
_PLACEHOLDERS: dict[Location, object] = {
    ("name",): "placeholder",
    ("model",): {"source": "torchvision:placeholder"},
    ("model", "source"): "torchvision:placeholder",
    ("model", "image", "height"): 1,
    ("model", "image", "width"): 1,
    ("slo", "p99_ms"): 100.0,
    ("text", "route", "to"): "placeholder",
    ("text", "sessions", "redis"): "redis://placeholder",
    ("cost", "pod_hour"): 1.0,
    ("kubernetes", "route", "gateway"): "placeholder/placeholder",
}


def load_spec(file: Path, *, files: bool = True) -> Spec:
    """Reads a spec file and fills in the defaults; SpecError lists everything that is wrong in it.

    Without `files`, the files that the spec names need not exist: a pod has the spec and the MAR, but not the model's
    sources."""
    return parse_spec(_read(file), file, files=files)


# The fields that identify a deployment, and the sections around them.
_IDENTIFYING_FIELDS = ("name", "kubernetes", "kubernetes.namespace")
_WITHOUT_SPEC = "a deployment can be named without a spec: NAME -n NAMESPACE"


def load_name(file: Path) -> tuple[str, str]:
    """The name and the namespace of a spec, even if other fields are wrong; InputError if one of these two is wrong."""
    try:
        data, lines, problems = read_yaml(_read(file), str(file))
    except InputError as err:
        raise InputError(err.message, hint=_WITHOUT_SPEC) from err
    spec, broken = _validate(data, str(file), lines, problems)
    # A field that is given twice counts as wrong too, although YAML would take the last of the two.
    relevant = [problem for problem in problems if problem.field in _IDENTIFYING_FIELDS]
    if problems and (not data or relevant or broken & {tuple(field.split(".")) for field in _IDENTIFYING_FIELDS}):
        raise InputError(SpecError(relevant or problems).message, hint=_WITHOUT_SPEC)
    return spec.name, spec.kubernetes.namespace


def _read(file: Path) -> str:
    try:
        with file.open(encoding="utf-8") as stream:
            text = stream.read(_MAX_CHARACTERS + 1)
    except FileNotFoundError as err:
        raise InputError(f"{file}: no such spec", hint="marina init mine, or the path of an existing one") from err
    except IsADirectoryError as err:
        inside = file / "spec.yaml"
        hint = f"marina check {quote(str(inside))}" if inside.is_file() else "marina init mine"
        raise InputError(f"{file}: is a folder, not a file", hint=hint) from err
    except (OSError, UnicodeDecodeError) as err:
        raise InputError(f"{file}: not readable as text: {reason_of(err)}") from err
    if len(text) > _MAX_CHARACTERS:
        raise InputError(f"{file}: more than {_MAX_CHARACTERS:,} characters; a spec has a few thousand")
    return text


def parse_spec(text: str, file: Path, *, files: bool = True) -> Spec:
    """Like `load_spec`, for text that was already read; errors name `file`, and relative paths start at its folder."""
    data, lines, problems = read_yaml(text, str(file))
    spec, broken = _validate(data, str(file), lines, problems)
    spec._file, spec._lines = file, lines
    for conflict in find_conflicts(spec, broken, files=files):
        # The field may be a default that another one contradicts, in a section that is not in the file.
        written = (field for field in conflict.read if field in lines)
        place = conflict.location if conflict.location[:1] in lines else next(written, ())
        line, field = line_of(lines, place), ".".join(map(str, conflict.location))
        problems.append(Problem(str(file), line, field, conflict.text, conflict.hint))
    if problems:
        raise SpecError(problems)
    return spec


def _validate(
    data: dict[str, Any], file: str, lines: dict[Location, int], problems: list[Problem]
) -> tuple[Spec, set[Location]]:
    """Builds the spec from the fields of `data` that are right; also returns the locations of the wrong ones."""
    broken: set[Location] = set()
    data = _with_default_p99(data)
    # Removing a wrong field can make the section around it wrong; at most once for each level of the file.
    for _ in range(10):
        try:
            return Spec.model_validate_json(json.dumps(data)), broken
        except ValidationError as err:
            errors = _without_other_types([(error, field_location(error)) for error in err.errors(include_url=False)])
            misspelt = _misspelt(errors, data)
            moved = {meant for location, meant in misspelt.items() if _move_section(data, lines, location, meant)}
            broken |= set(misspelt.values()) - moved
            # A wrong item removes its whole list, and a misspelt name leaves a field missing: neither is a second
            # problem. Nor is a value that is missing because it was not readable as YAML.
            reported = {place for known in broken | moved for place in _around(known)}
            unreadable = {(problem.line, problem.field) for problem in problems}
            for error, location in errors:
                if location in reported:
                    continue
                broken.add(location)
                reported.update(_around(location))
                problem = _problem(file, lines, location, *error_text(error, location, data))
                if (problem.line, problem.field) not in unreadable:
                    problems.append(problem)
            for _, location in errors:
                if location not in moved:
                    _remove(data, location)
    raise AssertionError(f"{file}: the spec could not be repaired: {sorted(map(str, broken))}")


def _with_default_p99(data: dict[str, Any]) -> dict[str, Any]:
    """Adds `slo.p99_ms` for a language model, if `ttft_p99_ms` and `itl_p99_ms` are given and it is not."""
    slo, text = (data.get(name) for name in ("slo", "text"))
    if not isinstance(slo, dict) or "p99_ms" in slo:
        return data
    longest = text.get("max_tokens") if isinstance(text, dict) else None
    parts = (slo.get("ttft_p99_ms"), slo.get("itl_p99_ms"), longest or Text.model_fields["max_tokens"].default)
    if not all(isinstance(part, int | float) for part in parts):
        return data
    first, gap, tokens = parts
    return data | {"slo": slo | {"p99_ms": max(0.001, first + gap * (tokens - 1))}}


def _without_other_types(errors: list[tuple[ErrorDetails, Location]]) -> list[tuple[ErrorDetails, Location]]:
    """Drops "not of this type" for a location, if there are errors inside of it: the other type was meant."""
    sections = {place for _, location in errors for place in _around(location[:-1])}
    return [(error, location) for error, location in errors if error["type"] not in _TYPES or location not in sections]


def _around(location: Location) -> Iterator[Location]:
    """The location, and every section around it."""
    return (location[:end] for end in range(1, len(location) + 1))


def _misspelt(errors: list[tuple[ErrorDetails, Location]], data: dict[str, Any]) -> dict[Location, Location]:
    """Maps unknown fields to the fields they probably stand for, unless those are given as well."""
    meant: dict[Location, Location] = {}
    for error, location in errors:
        field = meant_field(location) if error["type"] == "extra_forbidden" else None
        if field is not None and field not in meant.values() and field[-1] not in _parent(data, location):
            meant[location] = field
    return meant


def _move_section(data: dict[str, Any], lines: dict[Location, int], location: Location, meant: Location) -> bool:
    """Moves a section with a misspelt name to its right name, so that errors inside of it are reported too."""
    section = _parent(data, location).get(location[-1])
    if not (isinstance(section, dict) and section and is_section(meant)):
        return False
    _parent(data, location)[meant[-1]] = section
    for place, line in list(lines.items()):
        if place[: len(location)] == location:
            lines[(*meant, *place[len(location) :])] = line
    return True


def _parent(data: Any, location: Location) -> dict[Any, Any]:
    for part in location[:-1]:
        data = data[part]
    return data if isinstance(data, dict) else {}


def _remove(data: dict[str, Any], location: Location) -> None:
    """Removes a wrong value, so that its default or a placeholder is validated instead."""
    parent: Any = data
    for depth, part in enumerate(location[:-1]):
        if not isinstance(parent.get(part), dict):
            # For an item of a list, the whole list is removed: a shorter list is a value that nobody wrote.
            location = location[: depth + 1]
            break
        parent = parent[part]
    parent.pop(location[-1], None)
    if location in _PLACEHOLDERS:
        parent[location[-1]] = _PLACEHOLDERS[location]
    elif location[:2] == ("model", "inputs") and location[-1] == "shape":
        parent[location[-1]] = [1]


def _problem(file: str, lines: dict[Location, int], location: Location, text: str, hint: str | None) -> Problem:
    return Problem(file, line_of(lines, location), ".".join(map(str, location)), text, hint)
