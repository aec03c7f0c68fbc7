"""Lints a `config.properties` or `model-config.yaml`, by the name of the file.

TorchServe silently ignores what it does not know. Each finding names a rule, a line and a fix.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from config.errors import InputError, listed
from config.lint.finding import Finding
from config.lint.model_config import lint_model_config
from config.lint.properties import lint_properties

_LINTERS: dict[str, Callable[[bytes, str], list[Finding]]] = {
    ".properties": lint_properties,
    ".yaml": lint_model_config,
    ".yml": lint_model_config,
}


def lint_file(path: Path) -> list[Finding]:
    """Every finding in a file, sorted by line; InputError if the file cannot be read or is of another kind."""
    lint = _LINTERS.get(path.suffix.lower())
    if lint is None:
        raise InputError(
            f"{path}: got suffix `{path.suffix}`, allowed: {listed(_LINTERS)}",
            hint="marina check --properties config.properties",
        )
    try:
        data = path.read_bytes()
    except FileNotFoundError as err:
        raise InputError(f"{path}: no such file", hint="marina check --properties config.properties") from err
    except OSError as err:
        raise InputError(f"{path}: not readable: {err.strerror}") from err
    return sorted(lint(data, str(path)), key=lambda finding: (finding.line, finding.key, finding.rule, finding.text))
