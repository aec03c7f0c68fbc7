"""Runs every rule over the objects of an application."""

from collections.abc import Iterable, Iterator

from marina.config.progress import Progress
from marina.k8s.verify.application import Application
from marina.k8s.verify.located import LocatedDocument
from marina.k8s.verify.rule import Rule, Scope, Violation
from marina.k8s.verify.rules import (
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


def all_rules() -> list[Rule]:
    """Every rule, topic by topic."""
    return [rule for topic in TOPICS for rule in topic.rules]


def verify(
    documents: Iterable[LocatedDocument], scope: Scope | None = None, progress: Progress | None = None
) -> list[Violation]:
    """Every finding, sorted by file and line."""
    application, scope = Application(tuple(documents)), scope or Scope()
    progress = progress or Progress(quiet=True)
    violations: list[Violation] = []
    for version in scope.versions:
        # Validation takes most of the time, so each version is a step of its own; the `schema` rule then finds it done.
        with progress.step(f"Kubernetes {version}"):
            for document in application.documents:
                application.schemas.mistakes(document, version)
    with progress.step(f"{len(all_rules())} rules"):
        for rule in all_rules():
            violations += _violations(rule, application, scope)
    return sorted(violations)


def _violations(rule: Rule, application: Application, scope: Scope) -> Iterator[Violation]:
    for remark in rule.check(application, scope):
        document = remark.at.document
        yield Violation(
            file=document.file,
            line=remark.at.line or 0,
            object=document.reference,
            field=remark.at.field,
            rule=rule.id,
            level=remark.level or rule.level,
            text=remark.text,
            hint=remark.hint or rule.fix,
        )
