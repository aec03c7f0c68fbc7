"""An admission check without a cluster: every rule over documents that belong together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from k8s.verify.application import Bundle
from k8s.verify.located import Document
from k8s.verify.rule import Context, Finding, Rule
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
    refused,
    resources,
    scaling,
    security,
    selectors,
)

TOPICS = [
    part.TOPIC
    for part in (
        documents,
        refused,
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


class Steps(Protocol):
    """Who is told what is being done."""

    def step(self, text: str) -> AbstractContextManager[None]:
        """One step, for as long as it takes."""


class _Silent:
    def step(self, text: str) -> AbstractContextManager[None]:
        return nullcontext()


def rules() -> list[Rule]:
    """Every rule, topic by topic."""
    return [rule for topic in TOPICS for rule in topic.rules]


def verify(documents: Iterable[Document], context: Context | None = None, steps: Steps | None = None) -> list[Finding]:
    """Every finding, by file and line."""
    bundle, known = Bundle(tuple(documents)), context or Context()
    found: list[Finding] = []
    for version in known.versions:
        # The schemas are what takes time: reading them is a step for each version, the rules then find them read.
        with (steps or _Silent()).step(f"Kubernetes {version}"):
            for document in bundle.documents:
                bundle.schemas.mistakes(document, version)
    with (steps or _Silent()).step(f"{len(rules())} rules"):
        for rule in rules():
            found += _findings(rule, bundle, known)
    return sorted(found)


def _findings(rule: Rule, bundle: Bundle, context: Context) -> Iterator[Finding]:
    for one in rule.check(bundle, context):
        document = one.at.document
        yield Finding(
            file=document.file,
            line=one.at.line or 0,
            object=document.reference,
            field=one.at.field,
            rule=rule.id,
            level=one.level or rule.level,
            text=one.text,
            hint=one.hint or rule.fix,
        )
