"""Reads a spec file into a frozen `Spec`, or raises all its errors at once: first those of fields, and only if every
field is right, those of fields that do not fit together."""

import json
from pathlib import Path
from shlex import quote
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from marina.config.combinations import find_conflicts
from marina.config.errors import InputError, Problem, SpecError, reason_of
from marina.config.sections import LARGEST, Kubernetes, Text
from marina.config.spec import Spec
from marina.config.validation_errors import error_text, field_location, meant_field
from marina.config.yaml_lines import Location, line_of, read_yaml

_MAX_CHARACTERS = 1_000_000


def load_spec(file: Path, *, files: bool = True) -> Spec:
    """Reads a spec file and fills in the defaults; SpecError lists everything that is wrong in it.

    Without `files`, the files that the spec names need not exist: a pod has the spec and the MAR, but not the model's
    sources."""
    return parse_spec(_read(file), file, files=files)


# The fields that identify a deployment, and the section around one of them.
_IDENTIFYING_FIELDS = ("name", "kubernetes", "kubernetes.namespace")
_WITHOUT_SPEC = "a deployment can be named without a spec: NAME -n NAMESPACE"


def load_name(file: Path) -> tuple[str, str]:
    """The name and the namespace of a spec, even if other fields are wrong; InputError if one of these two is wrong."""
    try:
        data, lines, problems = read_yaml(_read(file), str(file))
    except InputError as err:
        raise InputError(err.message, hint=_WITHOUT_SPEC) from err
    try:
        _validate(data, str(file), lines, problems)
    except SpecError as err:
        relevant = [problem for problem in err.problems if problem.field in _IDENTIFYING_FIELDS]
        if relevant:
            raise InputError(SpecError(relevant).message, hint=_WITHOUT_SPEC) from err
    return data["name"], data.get("kubernetes", {}).get("namespace", Kubernetes().namespace)


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
    spec = _validate(data, str(file), lines, problems)
    spec._file, spec._lines = file, lines
    if problems := [*problems, *_conflicts(spec, files=files)]:
        raise SpecError(problems)
    return spec


def check_files(spec: Spec) -> None:
    """Raises SpecError with every rule that the spec breaks, of which some could not be checked before its sources were
    fetched."""
    if problems := _conflicts(spec, files=True):
        raise SpecError(problems)


def _conflicts(spec: Spec, *, files: bool) -> list[Problem]:
    problems, lines = [], spec._lines
    for conflict in find_conflicts(spec, files=files):
        # The field may be a default that another one contradicts, in a section that is not in the file.
        written = (field for field in conflict.read if field in lines)
        place = conflict.location if conflict.location[:1] in lines else next(written, ())
        line = line_of(lines, place)
        problems.append(_problem(str(spec.file), line, conflict.location, conflict.text, conflict.hint))
    return problems


def _validate(data: dict[str, Any], file: str, lines: dict[Location, int], problems: list[Problem]) -> Spec:
    """The spec without the rules about combinations. Raises SpecError with every wrong field, and with the `problems`
    that the file already has."""
    data = _with_default_p99(data)
    found: list[Problem] = []
    try:
        spec = Spec.model_validate_json(json.dumps(data))
    except ValidationError as err:
        errors = [(error, field_location(error)) for error in err.errors(include_url=False)]
        # A misspelt name leaves a field missing, and a value that is not readable as YAML too: neither is a second
        # problem.
        reported = {meant_field(place, data) for error, place in errors if error["type"] == "extra_forbidden"}
        unreadable = {(problem.line, problem.field) for problem in problems}
        for error, location in _innermost(errors):
            if location not in reported:
                problem = _problem(file, line_of(lines, location), location, *error_text(error, location, data))
                found += [problem] if (problem.line, problem.field) not in unreadable else []
            reported.add(location)
    if problems or found:
        raise SpecError([*problems, *found])
    return spec


def _with_default_p99(data: dict[str, Any]) -> dict[str, Any]:
    """Adds `slo.p99_ms` for a language model, if `ttft_p99_ms` and `itl_p99_ms` are given and it is not."""
    slo, text = (data.get(name) for name in ("slo", "text"))
    if not isinstance(slo, dict) or "p99_ms" in slo:
        return data
    longest = text.get("max_tokens") if isinstance(text, dict) else None
    parts = (slo.get("ttft_p99_ms"), slo.get("itl_p99_ms"), longest or Text.model_fields["max_tokens"].default)
    # What is out of bounds gets an error of its own, and only that.
    numbers = [min(max(part, 0), LARGEST) for part in parts if isinstance(part, int | float)]
    if len(numbers) < len(parts):
        return data
    first, gap, tokens = numbers
    return data | {"slo": slo | {"p99_ms": min(max(0.001, first + gap * (tokens - 1)), LARGEST)}}


def _innermost(errors: list[tuple[ErrorDetails, Location]]) -> list[tuple[ErrorDetails, Location]]:
    """The errors without those around others: of a field that may be a number or a list, pydantic says both, and it
    counts only the items that are right."""
    around = {location[:end] for _, location in errors for end in range(len(location))}
    return [(error, location) for error, location in errors if location not in around]


def _problem(file: str, line: int, location: Location, text: str, hint: str | None) -> Problem:
    return Problem(file, line, ".".join(map(str, location)), text, hint)
