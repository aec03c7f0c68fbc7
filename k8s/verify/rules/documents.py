"""Rules about single objects: schemas, API versions, duplicates, namespaces."""

import re
from collections.abc import Iterator

from marina.config.errors import listed
from marina.k8s.verify.application import Application
from marina.k8s.verify.located import LocatedDocument, is_adapter_settings
from marina.k8s.verify.rule import Level, Remark, Scope, Topic, repeated
from marina.k8s.verify.schemas import SchemaMistake, is_built_in, is_shipped, served

TOPIC = Topic("Objects")

_CLUSTER_WIDE = re.compile(
    "APIService|Cluster.+|.*Class|CSIDriver|CertificateSigningRequest|CustomResourceDefinition|FlowSchema|Namespace|Node"
    "|PersistentVolume|PriorityLevelConfiguration|(Mutating|Validating)(AdmissionPolicy(Binding)?|WebhookConfiguration)"
    "|IPAddress|ServiceCIDR"
)


@TOPIC.rule(
    "schema",
    "error",
    what="A field is unknown, is missing or has the wrong type in at least one of the Kubernetes versions checked.",
    why="A server's dry run knows only its own version: the field fails, or is silently dropped, after an upgrade.",
    fix="`kubectl explain KIND.FIELD` lists the fields; `--kubernetes` limits the versions that are checked",
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
            # A Deployment without a selector, for one, gets it from the labels of a kustomization.
            level: Level | None = "warning" if document.gets_labels and mistake.text.startswith("missing") else None
            yield Remark(document.root.at(*mistake.path), mistake.text + where, mistake.hint, level)


@TOPIC.rule(
    "api-version",
    "error",
    what="At least one of the Kubernetes versions checked does not serve the kind in this API version.",
    why="A cluster that serves it accepts it without a word; a newer or older one refuses it.",
    fix="use the API version that all of them serve; `kubectl convert` rewrites old objects",
)
def _api_version(application: Application, scope: Scope) -> Iterator[Remark]:
    for document in _objects(application):
        missing = [version for version in scope.versions if not application.schemas.knows(document, version)]
        if not missing or not is_built_in(document):
            continue
        common = set.intersection(*(set(served(document.kind, version)) for version in scope.versions))
        text = f"got `{document.api_version}`, not in Kubernetes {_span(missing)}, "
        text += f"allowed: {listed(common)}" if common else f"and no API version of `{document.kind}` is in all of them"
        best = max(common, key=_maturity, default=None)
        yield Remark(document.root.at("apiVersion"), text, f"apiVersion: {best}" if best else None)


@TOPIC.rule(
    "kind-unknown",
    "warning",
    what="There is no schema for a custom resource.",
    why="Its fields cannot be checked here: a misspelt one only shows up in a cluster that has the definition.",
    fix="add its CustomResourceDefinition to the folder; its schema is then used",
)
def _kind_unknown(application: Application, scope: Scope) -> Iterator[Remark]:
    for document in _objects(application):
        known = any(application.schemas.knows(document, version) for version in scope.versions)
        if not known and not is_built_in(document):
            custom = listed(application.schemas.custom_kinds())
            text = f"got `{document.kind}` of `{document.api_version}`, known: {custom}"
            yield Remark(document.root.at("kind"), text)


@TOPIC.rule(
    "duplicate-object",
    "error",
    what="Two objects have the same kind, namespace and name.",
    why="Each is valid by itself, so no server refuses it: the one applied last overwrites the other.",
    fix="delete one of them, or rename it",
)
def _duplicate(application: Application, _: Scope) -> Iterator[Remark]:
    def name_of(document: LocatedDocument) -> tuple[str, ...]:
        return document.group, document.kind, document.namespace, document.name

    for earlier, document in repeated(_objects(application), name_of):
        if document.name:
            line = earlier.root.at("metadata", "name").line
            place = f"{earlier.file}:{line}" if line else earlier.file
            # A second one that is the same, such as a Namespace that each part of a folder brings, does no harm.
            harmless = document.data == earlier.data or document.is_beside(earlier)
            level: Level | None = "warning" if harmless else None
            yield Remark(document.root.at("metadata", "name"), f"defined twice, first in {place}", level=level)


@TOPIC.rule(
    "namespace-mixed",
    "warning",
    what="The objects are in several namespaces, or some of them name none.",
    why="A Service, NetworkPolicy or PodDisruptionBudget only selects pods in its own namespace, and an object without "
    "one goes to whichever namespace kubectl currently uses.",
    fix="write the same `metadata.namespace` in all of them",
)
def _namespace(application: Application, _: Scope) -> Iterator[Remark]:
    defined = [item.root.at("spec") for item in application.of("CustomResourceDefinition")]
    wide = {spec.at("names", "kind").text for spec in defined if spec.at("scope").text == "Cluster"}
    known = {spec.at("names", "kind").text for spec in defined} - wide
    namespaced = [
        item
        for item in _objects(application)
        if not _CLUSTER_WIDE.fullmatch(item.kind)
        and item.kind not in wide
        # Of other custom resources nobody here knows whether they are in a namespace.
        and (item.namespace or item.kind in known or is_built_in(item) or is_shipped(item))
    ]
    used = [item.namespace for item in namespaced]
    # Compare with the most common namespace, so that the stray object is reported and not all the others.
    usual = max(dict.fromkeys(used), key=used.count, default="")
    for document in namespaced:
        if document.namespace != usual:
            got = f"got `{document.namespace}`" if document.namespace else "missing"
            others = f"are in `{usual}`" if usual else "name none"
            yield Remark(document.root.at("metadata", "namespace"), f"{got}, the other objects {others}")


def _objects(application: Application) -> list[LocatedDocument]:
    return [document for document in application.documents if not is_adapter_settings(document)]


def _span(versions: list[str]) -> str:
    """Consecutive versions as `1.30–1.33`."""
    minors = [int(version.partition(".")[2]) for version in versions]
    if len(minors) > 1 and minors == list(range(minors[0], minors[-1] + 1)):
        return f"{versions[0]}–{versions[-1]}"
    return ", ".join(versions)


def _maturity(api_version: str) -> tuple[bool, str]:
    return ("alpha" not in api_version and "beta" not in api_version, api_version)
