"""A rule: a stable id, a level, the texts about it, and a function that checks the objects of an application.

error     a cluster refuses it, or it does harm in every cluster
warning   it works, but good practice says to do it differently"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from marina.k8s.manifests import SUPPORTED_VERSIONS, Plan
from marina.k8s.verify.application import Application
from marina.k8s.verify.located import LocatedDocument, Place

Level = Literal["error", "warning"]


@dataclass(frozen=True)
class Scope:
    """What rules know besides the documents."""

    versions: tuple[str, ...] = SUPPORTED_VERSIONS
    """The Kubernetes versions to check against."""
    plan: Plan | None = None
    """The plan that the documents were rendered from; None for a folder."""


@dataclass(frozen=True)
class Remark:
    """What a rule says about one place."""

    at: Place
    text: str
    """What is there, and what is allowed."""
    hint: str | None = None
    """What to type; None: the rule's `fix`."""
    level: Level | None = None
    """None: the rule's own."""


CheckFunction = Callable[[Application, Scope], Iterator[Remark]]


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
    check: CheckFunction = field(repr=False)


@dataclass(frozen=True, order=True)
class Violation:
    """A finding: one place where a document breaks a rule."""

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
    """The rules about one topic, in the order of their definition."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rules: list[Rule] = []

    def rule(
        self, name: str, level: Level, *, what: str, why: str, fix: str
    ) -> Callable[[CheckFunction], CheckFunction]:
        """A decorator that makes a function the check of a new rule."""

        def add(check: CheckFunction) -> CheckFunction:
            self.rules.append(Rule(name, level, what, why, fix, check))
            return check

        return add


def repeated(
    documents: Iterable[LocatedDocument], key: Callable[[LocatedDocument], tuple[str, ...]]
) -> Iterator[tuple[LocatedDocument, LocatedDocument]]:
    """Each object that has the key of an earlier one that it surely meets, behind that one."""
    known: dict[tuple[str, ...], list[LocatedDocument]] = defaultdict(list)
    for document in documents:
        same = known[key(document)]
        met = (other for other in same if other.may_meet(document) and other.is_applied_with(document))
        if earlier := next(met, None):
            yield earlier, document
        same.append(document)
