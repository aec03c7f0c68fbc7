"""Rules about several fields of a spec that must fit together, and about the files that a spec names.

The modules `archive`, `source`, `model`, `encoding`, `writing`, `vllm`, `serving` and `cluster` hold the rules by
topic; `rule` registers them. A rule names the fields that it reads: an error about a default has the line of one that
is written."""

from dataclasses import dataclass

from marina.config.combinations import (  # noqa: F401  (importing them registers their rules)
    archive,
    cluster,
    encoding,
    model,
    serving,
    source,
    vllm,
    writing,
)
from marina.config.combinations.rule import COMBINATIONS, FILES
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


def find_conflicts(spec: Spec, *, files: bool) -> list[Conflict]:
    """Every rule that the spec breaks; with `files`, also the rules about the files that it names."""
    return [
        Conflict(tuple(field.split(".")), text, hint, tuple(tuple(name.split(".")) for name in fields))
        for fields, rule in COMBINATIONS + (FILES if files else [])
        for field, text, hint in rule(spec)
    ]


def find_warnings(spec: Spec) -> list[str]:
    """Settings that are allowed but look like a mistake."""
    return [*encoding.encoder_warnings(spec), *vllm.vllm_warnings(spec), *writing.writer_warnings(spec)]
