"""Lints a `config.properties` or `model-config.yaml`, by the name of the file.

TorchServe silently ignores what it does not know. Each finding names a rule, a line and a fix."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from marina.config.errors import InputError, listed, printable
from marina.config.lint.finding import Finding, on_line
from marina.config.lint.model_config import lint_model_config
from marina.config.lint.properties import lint_properties

_LINTERS: dict[str, Callable[[bytes, str], Iterable[Finding]]] = {
    ".properties": lint_properties,
    ".yaml": lint_model_config,
    ".yml": lint_model_config,
}
_MAX_BYTES = 1_000_000


def lint_file(path: Path) -> list[Finding]:
    """Every finding in a file, sorted by line; InputError if the file cannot be read or is of another kind."""
    hint = "marina check --properties config.properties"
    try:
        with path.open("rb") as stream:
            data = stream.read(_MAX_BYTES + 1)
    except FileNotFoundError as err:
        raise InputError(f"{path}: no such file", hint=hint) from err
    except OSError as err:
        raise InputError(f"{path}: not readable: {err.strerror}") from err
    if (lint := _LINTERS.get(path.suffix.lower())) is None:
        raise InputError(f"{path}: its name must end in one of {listed(_LINTERS)}", hint=hint)
    if len(data) > _MAX_BYTES:
        raise InputError(f"{path}: more than {_MAX_BYTES:,} bytes; such a file has a few thousand")
    # Text from the file must not control the terminal.
    findings = [
        replace(
            finding,
            file=str(path),
            key=printable(finding.key),
            text=printable(finding.text),
            hint=finding.hint and printable(finding.hint),
        )
        for finding in on_line(1, lint(data, str(path)))
    ]
    return sorted(findings, key=lambda finding: (finding.line, finding.key, finding.rule, finding.text))
