"""Rules about objects as such: schemas, API versions, names, labels, namespaces."""

from __future__ import annotations

import re
from collections.abc import Iterator

from config.errors import listed
from k8s.verify.application import Application, makes_pods
from k8s.verify.located import LocatedDocument, is_settings
from k8s.verify.rule import Remark, Scope, Topic
from k8s.verify.schemas import SchemaMistake, is_built_in, served

TOPIC = Topic("Objects")

_CLUSTER_WIDE = re.compile(
    "APIService|ClusterRole(Binding)?|CSIDriver|CustomResourceDefinition|DeviceClass|IngressClass|Namespace"
    "|PersistentVolume|PriorityClass|RuntimeClass|StorageClass|VolumeAttributesClass"
    "|(Mutating|Validating)(AdmissionPolicy(Binding)?|WebhookConfiguration)"
)


@TOPIC.rule(
    "schema",
    "error",
    what="A field is unknown, of another type, or missing, in some of the Kubernetes versions looked at.",
    why="A cluster checks against its own version only, or silently drops the field: you notice at the next upgrade.",
    fix="`kubectl explain KIND.FIELD` has the fields; leave a version out with `--kubernetes`",
)
def _schema(application: Application, scope: Scope) -> Iterator[Remark]:
    for document in _objects(application):
        seen: dict[SchemaMistake, list[str]] = {}
        known = [version for version in scope.versions if application.schemas.knows(document, version)]
        for version in known:
            for mistake in application.schemas.mistakes(document, version):
                seen.setdefault(mistake, []).append(version)
        for mistake, versions in seen.items():
            where = "" if versions == known else f" in Kubernetes {_span(versions)}"
            yield Remark(document.root.at(*mistake.path), mistake.text + where, mistake.hint)


@TOPIC.rule(
    "api-version",
    "error",
    what="Some of the Kubernetes versions looked at do not have the kind in this API version.",
    why="Today's cluster takes it, but the next version, or an older one, may not.",
    fix="write the API version that all of them have; `kubectl convert` rewrites old objects",
)
def _api_version(application: Application, scope: Scope) -> Iterator[Remark]:
    for document in _objects(application):
        missing = [version for version in scope.versions if not application.schemas.knows(document, version)]
        if not missing or not is_built_in(document):
            continue
        there = [set(served(document.kind, version)) for version in scope.versions]
        common, text = set.intersection(*there), f"got `{document.api_version}`, not in Kubernetes {_span(missing)}"
        best = max(common, key=_maturity, default=None)
        yield Remark(
            document.root.at("apiVersion"),
            f"{text}, allowed: {listed(common)}"
            if common
            else f"{text}, and no other API version has `{document.kind}`",
            f"apiVersion: {best}" if best else None,
        )


@TOPIC.rule(
    "kind-unknown",
    "error",
    what="No schema is known for a custom resource.",
    why="Its fields were not checked: a misspelt one shows only in the cluster.",
    fix="put its CustomResourceDefinition into the folder: its schema is used",
)
def _kind_unknown(application: Application, scope: Scope) -> Iterator[Remark]:
    for document in _objects(application):
        known = any(application.schemas.knows(document, version) for version in scope.versions)
        if not known and not is_built_in(document):
            custom = listed(application.schemas.custom_kinds())
            text = f"got `{document.kind}` of `{document.api_version}`, known: {custom}"
            # Its pods are looked at all the same.
            yield Remark(document.root.at("kind"), text, level="warning" if makes_pods(document) else None)


@TOPIC.rule(
    "duplicate-object",
    "error",
    what="Two objects have the same kind, namespace and name.",
    why="One overwrites the other, and which one depends on the order.",
    fix="delete one of the two, or give it another name",
)
def _duplicate(application: Application, _: Scope) -> Iterator[Remark]:
    first: dict[tuple[str, ...], LocatedDocument] = {}
    for document in _objects(application):
        earlier = first.setdefault((document.group, document.kind, document.namespace, document.name), document)
        if earlier is not document and document.name:
            line = earlier.root.at("metadata", "name").line
            place = f"{earlier.file}:{line}" if line else earlier.file
            yield Remark(document.root.at("metadata", "name"), f"given twice, first in {place}")


@TOPIC.rule(
    "namespace-mixed",
    "warning",
    what="Objects that belong together are in several namespaces, or some of them in none.",
    why="A Service, policy or budget reaches pods of its own namespace only; kubectl chooses one where none is given.",
    fix="write the same `metadata.namespace` in each of them",
)
def _namespace(application: Application, _: Scope) -> Iterator[Remark]:
    spaced = [item for item in _objects(application) if not _CLUSTER_WIDE.fullmatch(item.kind)]
    used = [item.namespace for item in spaced]
    # The usual one, so that the stray object is reported and not all the others.
    usual = max(dict.fromkeys(used), key=used.count, default="")
    for document in spaced:
        if document.namespace != usual:
            got = f"got `{document.namespace}`" if document.namespace else "missing"
            others = f"`{usual}`" if usual else "none"
            yield Remark(document.root.at("metadata", "namespace"), f"{got}, the other objects have {others}")


def _objects(application: Application) -> list[LocatedDocument]:
    return [document for document in application.documents if not is_settings(document)]


def _span(versions: list[str]) -> str:
    """Versions in a row as `1.30–1.33`."""
    minors = [int(version.partition(".")[2]) for version in versions]
    if len(minors) > 1 and minors == list(range(minors[0], minors[-1] + 1)):
        return f"{versions[0]}–{versions[-1]}"
    return ", ".join(versions)


def _maturity(api_version: str) -> tuple[bool, str]:
    return ("alpha" not in api_version and "beta" not in api_version, api_version)
