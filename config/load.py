"""From a spec file to a frozen `Spec`, or to all its errors at once.

A wrong field does not hide the others: it is taken out, the rest is completed with defaults, and the rules about
combinations are still applied to every field that was right.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from config.combinations import find_conflicts
from config.errors import InputError, Problem, SpecError
from config.sections import Text
from config.spec import Spec
from config.validation_errors import error_text, field_location, is_section, meant_field
from config.yaml_lines import Location, read_yaml

_LONGEST = 1_000_000
# Stand-ins for required fields, so that combinations can be checked although one is missing.
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
    ("kubernetes", "log_shipper", "image"): "placeholder",
    ("kubernetes", "route", "gateway"): "placeholder/placeholder",
}


def load_spec(file: Path, *, files: bool = True) -> Spec:
    """The spec of a file, completed; SpecError names everything that is wrong in it.

    With `files` false the paths inside are not looked for: a pod has the spec and the MAR, but not the model's sources.
    """
    return parse_spec(_text(file), file, files=files)


# What says which deployment is meant.
_PLACE = ("name", "kubernetes", "kubernetes.namespace")
_WITHOUT_SPEC = "what is deployed can be named without a spec: NAME -n NAMESPACE"


def load_name(file: Path) -> tuple[str, str]:
    """A spec's name and namespace, also of a spec that has errors elsewhere; InputError where these two are wrong."""
    text = _text(file)
    try:
        data, lines, problems = read_yaml(text, str(file))
    except InputError as err:
        raise InputError(err.message, hint=_WITHOUT_SPEC) from err
    spec, broken = _validate(data, str(file), lines, problems)
    # One that is given twice is not known either, though the last of two is what YAML would take.
    of_place = [problem for problem in problems if problem.field in _PLACE]
    if problems and (not data or of_place or broken & {tuple(field.split(".")) for field in _PLACE}):
        raise InputError(SpecError(of_place or problems).message, hint=_WITHOUT_SPEC)
    return spec.name, spec.kubernetes.namespace


def _text(file: Path) -> str:
    try:
        with file.open(encoding="utf-8") as stream:
            text = stream.read(_LONGEST + 1)
    except FileNotFoundError as err:
        raise InputError(f"{file}: no such spec", hint="marina init mine, or the path of an existing one") from err
    except IsADirectoryError as err:
        raise InputError(f"{file}: is a folder, a spec is a file", hint=f"marina check {file / 'spec.yaml'}") from err
    except (OSError, UnicodeDecodeError) as err:
        raise InputError(f"{file}: not readable as text: {err}") from err
    if len(text) > _LONGEST:
        raise InputError(f"{file}: more than {_LONGEST:,} characters, a spec has a few thousand")
    return text


def parse_spec(text: str, file: Path, *, files: bool = True) -> Spec:
    """`load_spec` on text that is already at hand; `file` names it and anchors its relative paths."""
    data, lines, problems = read_yaml(text, str(file))
    spec, broken = _validate(data, str(file), lines, problems)
    spec._file, spec._lines = file, lines
    for conflict in find_conflicts(spec, broken, files=files):
        problems.append(_problem(str(file), lines, conflict.location, conflict.text, conflict.hint))
    if problems:
        raise SpecError(problems)
    return spec


def _validate(
    data: dict[str, Any], file: str, lines: dict[Location, int], problems: list[Problem]
) -> tuple[Spec, set[Location]]:
    """The spec built from what is right in `data`, and the locations of what was not."""
    broken: set[Location] = set()
    data = _with_whole_answers(data)
    # Taking a wrong field out can uncover another one around it, never more than the file is deep.
    for _ in range(10):
        try:
            return Spec.model_validate_json(json.dumps(data, default=str)), broken
        except ValidationError as err:
            errors = _without_other_types([(error, field_location(error)) for error in err.errors(include_url=False)])
            misspelt = _misspelt(errors, data)
            moved = {meant for location, meant in misspelt.items() if _moved(data, lines, location, meant)}
            broken |= set(misspelt.values()) - moved
            for error, location in errors:
                if not _is_known(location, broken | set(misspelt.values())):
                    problems.append(_problem(file, lines, location, *error_text(error, location, data)))
                    broken.add(location)
            for _, location in errors:
                if location not in moved:
                    _repair(data, location)
    raise AssertionError(f"{file}: the spec could not be repaired: {sorted(map(str, broken))}")


def _with_whole_answers(data: dict[str, Any]) -> dict[str, Any]:
    """With the objective of whole answers, where that of their pieces says it."""
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
    """Without what is said of a place as if it were to hold a plain value, where something inside of it is wrong."""
    places = [location for _, location in errors]
    return [
        (error, location)
        for error, location in errors
        if not (error["type"] == "int_type" and any(other[:-1][: len(location)] == location for other in places))
    ]


def _is_known(location: Location, broken: set[Location]) -> bool:
    """Whether a place was already complained about: an item that is wrong is named itself, and what its list then
    misses is not a second problem; nor is a field that is missing because its name is misspelt."""
    return any(known[: len(location)] == location for known in broken)


def _misspelt(errors: list[tuple[ErrorDetails, Location]], data: dict[str, Any]) -> dict[Location, Location]:
    """Unknown fields and the ones they probably are, where those are not given too."""
    meant: dict[Location, Location] = {}
    for error, location in errors:
        field = meant_field(location) if error["type"] == "extra_forbidden" else None
        if field is not None and field not in meant.values() and field[-1] not in _parent(data, location):
            meant[location] = field
    return meant


def _moved(data: dict[str, Any], lines: dict[Location, int], location: Location, meant: Location) -> bool:
    """Puts a section with a misspelt name where it belongs, so that what is wrong inside of it is named too."""
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


def _repair(data: dict[str, Any], location: Location) -> None:
    """Takes a wrong value out, so that its default or a stand-in is validated instead."""
    parent: Any = data
    for part in location[:-1]:
        # An item of a list falls with its whole list: a shorter list would be another value nobody wrote.
        if isinstance(parent, dict) and isinstance(parent.get(part), dict):
            parent = parent[part]
        else:
            parent.pop(part, None)
            return
    parent.pop(location[-1], None)
    if location in _PLACEHOLDERS:
        parent[location[-1]] = _PLACEHOLDERS[location]
    elif location[:2] == ("model", "inputs") and location[-1] == "shape":
        parent[location[-1]] = [1]


def _problem(file: str, lines: dict[Location, int], location: Location, text: str, hint: str | None) -> Problem:
    known = location
    while known not in lines:
        known = known[:-1]
    return Problem(file, lines[known], ".".join(map(str, location)), text, hint)
