"""A rule: a stable id, a level, the texts about it, and a function that checks the objects.

error     a cluster refuses it, or it does harm in every cluster
warning   it works, but what was measured or promised no longer holds"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from marina.k8s.verify.objects import Objects, Place

Level = Literal["error", "warning"]


@dataclass(frozen=True)
class Remark:
    """What a rule says about one place: what is there and what is allowed. None: the rule's own hint and level."""

    at: Place
    text: str
    hint: str | None = None
    level: Level | None = None


Check = Callable[[Objects], Iterator[Remark]]


@dataclass(frozen=True)
class Rule:
    """One rule. Its texts also make its row in `docs/reference/rules.md`."""

    id: str
    level: Level
    what: str
    """The defect, as the code detects it."""
    why: str
    """The harm, and why neither a server's dry run nor kube-linter shows it."""
    fix: str
    """What to type."""
    check: Check = field(repr=False)


@dataclass(frozen=True, order=True)
class Violation:
    """A finding: one place where an object breaks a rule."""

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


class Rules(list[Rule]):
    """The rules of one module, in the order of their definition."""

    def rule(self, name: str, level: Level, *, what: str, why: str, fix: str) -> Callable[[Check], Check]:
        """A decorator that makes a function the check of a new rule."""

        def add(check: Check) -> Check:
            self.append(Rule(name, level, what, why, fix, check))
            return check

        return add
