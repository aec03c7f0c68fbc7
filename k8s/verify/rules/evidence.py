"""Rules about where manifests come from: the package that was built, and what was measured of it."""

from __future__ import annotations

from collections.abc import Iterator

from k8s.manifests import CONFIG_ANNOTATION, CONFIG_FILE, EVIDENCE_ANNOTATION, PACKAGE_ANNOTATION, config_sha256
from k8s.verify.application import Application
from k8s.verify.rule import Remark, Scope, Topic

TOPIC = Topic("Evidence")


@TOPIC.rule(
    "package-differs",
    "error",
    what="The pods are annotated with another package than the one that was built.",
    why="What is deployed is not what was measured.",
    fix="`marina manifests SPEC` again, after `marina image SPEC`",
)
def _package(application: Application, scope: Scope) -> Iterator[Remark]:
    package = scope.plan.package if scope.plan else None
    for workload in application.ours if package else []:
        node = workload.template.at("metadata", "annotations", PACKAGE_ANNOTATION)
        if package and node.value != package.sha256:
            got = f"got `{str(node.value)[:12]}…`" if node.given else "missing"
            yield Remark(node, f"{got}, but built was `{package.sha256[:12]}…`")


@TOPIC.rule(
    "evidence-differs",
    "error",
    what="An object is annotated with other evidence than what was measured last.",
    why="Its limits, probes or targets are from another measurement.",
    fix="`marina manifests SPEC` again",
)
def _evidence(application: Application, scope: Scope) -> Iterator[Remark]:
    if scope.plan is None:
        return
    measured = scope.plan.evidence.sha256 if scope.plan.evidence else None
    ours = [scaler for scaler in application.scalers if scaler.name == scope.plan.name]
    for document in [*(workload.document for workload in application.ours), *ours]:
        node = document.root.at("metadata", "annotations", EVIDENCE_ANNOTATION)
        if node.value != measured:
            got, has = str(node.value)[:12], f"`{measured[:12]}…`" if measured else "nothing was measured"
            yield Remark(node, f"got `{got}…`, but {has}" if node.given else f"missing, and measured is {has}")


@TOPIC.rule(
    "config-differs",
    "error",
    what="The pods are annotated with another configuration than the spec's.",
    why="A change of the configuration starts no new pods: half of them run with the old one.",
    fix="`marina manifests SPEC` again",
)
def _config(application: Application, scope: Scope) -> Iterator[Remark]:
    if scope.plan is None:
        return
    for workload in application.ours:
        node, wanted = workload.template.at("metadata", "annotations", CONFIG_ANNOTATION), config_sha256(scope.plan)
        if node.value != wanted:
            yield Remark(
                node, f"got `{str(node.value)[:12]}…`, the spec's is `{wanted[:12]}…`; mounted as `{CONFIG_FILE}`"
            )
