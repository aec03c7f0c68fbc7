"""An admission check without a cluster: every rule over documents that belong together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from k8s.verify.application import Application
from k8s.verify.located import LocatedDocument
from k8s.verify.rule import Rule, Scope, Violation
from k8s.verify.rules import (
    availability,
    documents,
    evidence,
    exposure,
    metrics,
    monitoring,
    probes,
    profile,
    references,
    resources,
    scaling,
    security,
    selectors,
)

TOPICS = [
    part.TOPIC
    for part in (
        documents,
        selectors,
        references,
        exposure,
        profile,
        security,
        resources,
        probes,
        availability,
        scaling,
        monitoring,
        metrics,
        evidence,
    )
]


class StepReporter(Protocol):
    """Who is told what is being done."""

    def step(self, text: str) -> AbstractContextManager[None]:
        """One step, for as long as it takes."""


class _NoReporter:
    def step(self, text: str) -> AbstractContextManager[None]:
        return nullcontext()


def all_rules() -> list[Rule]:
    """Every rule, topic by topic."""
    return [rule for topic in TOPICS for rule in topic.rules]


def verify(
    documents: Iterable[LocatedDocument], scope: Scope | None = None, steps: StepReporter | None = None
) -> list[Violation]:
    """Every finding, by file and line."""
    application, known = Application(tuple(documents)), scope or Scope()
    violations: list[Violation] = []
    for version in known.versions:
        # The schemas are what takes time: reading them is a step for each version, the rules then find them read.
        with (steps or _NoReporter()).step(f"Kubernetes {version}"):
            for document in application.documents:
                application.schemas.mistakes(document, version)
    with (steps or _NoReporter()).step(f"{len(all_rules())} rules"):
        for rule in all_rules():
            violations += _findings(rule, application, known)
    return sorted(violations)


def _findings(rule: Rule, application: Application, scope: Scope) -> Iterator[Violation]:
    for violation in rule.check(application, scope):
        document = violation.at.document
        yield Violation(
            file=document.file,
            line=violation.at.line or 0,
            object=document.reference,
            field=violation.at.field,
            rule=rule.id,
            level=violation.level or rule.level,
            text=violation.text,
            hint=violation.hint or rule.fix,
        )
