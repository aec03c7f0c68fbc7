"""Rules about several fields of a spec that must fit together, and about the files that a spec names.

The modules `source`, `model`, `encoding`, `writing`, `vllm`, `serving` and `cluster` hold the rules by topic; `rule`
registers them. A rule names the fields that it reads, and is skipped if one of them is already known to be wrong."""

from dataclasses import dataclass

from marina.config.combinations import (  # noqa: F401  (importing them registers their rules)
    cluster,
    encoding,
    model,
    serving,
    source,
    vllm,
    writing,
)
from marina.config.combinations.rule import COMBINATIONS, FILES, FORMS, Table
from marina.config.spec import Spec
from marina.config.yaml_lines import Location

__all__ = ["Conflict", "find_conflicts", "find_warnings"]


@dataclass(frozen=True)
class Conflict:
    """One broken rule: the location of the error, its text, a hint, and the locations of all fields that it reads."""

    location: Location
    text: str
    hint: str | None
    read: tuple[Location, ...]


def find_conflicts(spec: Spec, broken: set[Location], *, files: bool) -> list[Conflict]:
    """Every rule that the spec breaks, except for rules that read a broken location; with `files`, also the rules about
    the files that it names."""
    conflicts = _broken_rules(FORMS, spec, broken)
    broken = broken | {conflict.location for conflict in conflicts}
    return conflicts + _broken_rules(COMBINATIONS + (FILES if files else []), spec, broken)


def find_warnings(spec: Spec) -> list[str]:
    """Settings that are allowed but look like a mistake."""
    return [*encoding.encoder_warnings(spec), *vllm.vllm_warnings(spec), *writing.writer_warnings(spec)]


def _broken_rules(rules: Table, spec: Spec, broken: set[Location]) -> list[Conflict]:
    applied = [
        (tuple(tuple(field.split(".")) for field in fields), rule)
        for fields, rule in rules
        if not any(_overlap(field, location) for field in fields for location in broken)
    ]
    return [
        Conflict(tuple(field.split(".")), text, hint, read)
        for read, rule in applied
        for field, text, hint in rule(spec)
    ]


def _overlap(field: str, location: Location) -> bool:
    """Whether the field and the location are the same, or one lies inside the other."""
    return all(part == other for part, other in zip(field.split("."), location, strict=False))
