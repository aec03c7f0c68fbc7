"""What fields of a spec may not be together, and which files it names must exist.

`rule` registers one; `source`, `model`, `encoding`, `writing`, `vllm`, `serving` and `cluster` hold them by topic. A
rule names the fields it looks at, and is left out when one of them is already known to be wrong.
"""

from __future__ import annotations

from dataclasses import dataclass

from config.combinations import (  # noqa: F401  (they register rules)
    cluster,
    encoding,
    model,
    serving,
    source,
    vllm,
    writing,
)
from config.combinations.rule import COMBINATIONS, FILES, FORMS, Table
from config.combinations.writing import find_warnings
from config.spec import Spec
from config.yaml_lines import Location

__all__ = ["Conflict", "find_conflicts", "find_warnings"]


@dataclass(frozen=True)
class Conflict:
    """One broken rule: the place its line points at, what to say, and what to type."""

    location: Location
    text: str
    hint: str | None = None


def find_conflicts(spec: Spec, broken: set[Location], *, files: bool) -> list[Conflict]:
    """Every rule that the spec breaks, except those that look at a broken location; with `files` also what it names and
    is not there."""
    conflicts = _broken_rules(FORMS, spec, broken)
    broken = broken | {conflict.location for conflict in conflicts}
    return conflicts + _broken_rules(COMBINATIONS + (FILES if files else []), spec, broken)


def _broken_rules(rules: Table, spec: Spec, broken: set[Location]) -> list[Conflict]:
    applied = [
        rule for fields, rule in rules if not any(_touches(field, place) for field in fields for place in broken)
    ]
    return [Conflict(tuple(at.split(".")), text, hint) for rule in applied for at, text, hint in rule(spec)]


def _touches(field: str, location: Location) -> bool:
    """Whether a field is, lies in, or holds a location."""
    return all(part == other for part, other in zip(field.split("."), location, strict=False))
