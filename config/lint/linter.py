"""The linter for a `config.properties` or `model-config.yaml` that a user brings.

TorchServe is silent about what it does not know, so this says it: each finding is a rule with an id, a line and a cure.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from config.errors import InputError, listed
from config.lint.finding import Finding
from config.lint.model_config import lint_model_config
from config.lint.properties import lint_properties

__all__ = ["Finding", "lint_file"]

_LINTERS: dict[str, Callable[[bytes, str], list[Finding]]] = {
    ".properties": lint_properties,
    ".yaml": lint_model_config,
    ".yml": lint_model_config,
}


def lint_file(path: Path) -> list[Finding]:
    """Every finding in a file, sorted by line; InputError when it cannot be read or is of another kind."""
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
