"""What a rule is: an id that stays, a level, and a function that looks at documents that belong together.

error     a cluster refuses it, or it harms wherever it is applied
warning   it works, but good practice says to do it differently
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from k8s.manifests import SUPPORTED_VERSIONS, Plan
from k8s.verify.application import Application
from k8s.verify.located import Place

Level = Literal["error", "warning"]


@dataclass(frozen=True)
class Scope:
    """What is known beside the documents."""

    versions: tuple[str, ...] = SUPPORTED_VERSIONS
    plan: Plan | None = None
    """What the documents were made from; None for those of others."""


@dataclass(frozen=True)
class Remark:
    """What a rule saw at one place: what was got and what is allowed, and what to type."""

    at: Place
    text: str
    hint: str | None = None
    level: Level | None = None
    """When it is not the rule's own."""


Check = Callable[[Application, Scope], Iterator[Remark]]


@dataclass(frozen=True)
class Rule:
    """One rule; its words are also the page about it."""

    id: str
    level: Level
    topic: str
    what: str
    why: str
    fix: str
    check: Check = field(repr=False)


@dataclass(frozen=True, order=True)
class Violation:
    """A rule that a document breaks."""

    file: str
    line: int
    object: str
    field: str
    rule: str
    level: Level
    text: str
    hint: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}: " if self.line else f"{self.file}: "
        return f"{place}{self.object}: " + (f"`{self.field}`: " if self.field else "") + self.text


class Topic:
    """Rules about one thing, in the order in which they are defined."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rules: list[Rule] = []

    def rule(self, name: str, level: Level, *, what: str, why: str, fix: str) -> Callable[[Check], Check]:
        """Makes a rule of a function."""

        def add(check: Check) -> Check:
            self.rules.append(Rule(name, level, self.name, what, why, fix, check))
            return check

        return add
