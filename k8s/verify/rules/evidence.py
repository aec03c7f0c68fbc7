"""Rules about where manifests come from: the package that was built, and what was measured of it."""

from __future__ import annotations

from collections.abc import Iterator

from k8s.manifests.config_map import FILE, config_sha256
from k8s.manifests.labels import CONFIG, EVIDENCE, PACKAGE
from k8s.verify.application import Bundle, Workload
from k8s.verify.rule import Context, Found, Topic

TOPIC = Topic("Evidence")


def _ours(bundle: Bundle) -> list[Workload]:
    return [one for one in bundle.workloads if one.ours]


@TOPIC.rule(
    "package-differs",
    "error",
    what="The pods are annotated with another package than the one that was built.",
    why="What was measured and what is deployed are two things.",
    fix="`marina manifests SPEC` again, after `marina image SPEC`",
)
def _package(bundle: Bundle, context: Context) -> Iterator[Found]:
    package = context.plan.package if context.plan else None
    for workload in _ours(bundle) if package else []:
        node = workload.template.at("metadata", "annotations", PACKAGE)
        if package and node.value != package.sha256:
            got = f"got `{str(node.value)[:12]}…`" if node.given else "missing"
            yield Found(node, f"{got}, built was `{package.sha256[:12]}…`")


@TOPIC.rule(
    "evidence-differs",
    "error",
    what="An object is annotated with other evidence than what was measured last.",
    why="Its limits, probes or targets are from another measurement.",
    fix="`marina manifests SPEC` again",
)
def _evidence(bundle: Bundle, context: Context) -> Iterator[Found]:
    if context.plan is None:
        return
    measured = context.plan.evidence.sha256 if context.plan.evidence else None
    ours = [one for one in bundle.scalers if one.name == context.plan.name]
    for document in [*(one.document for one in _ours(bundle)), *ours]:
        node = document.root.at("metadata", "annotations", EVIDENCE)
        if node.value != measured:
            got, has = str(node.value)[:12], f"`{measured[:12]}…`" if measured else "nothing was measured"
            yield Found(node, f"got `{got}…`, but {has}" if node.given else f"missing, and measured is {has}")


@TOPIC.rule(
    "config-differs",
    "error",
    what="The pods are annotated with another configuration than the spec's.",
    why="A change of the configuration starts no new pods: half of them run with the old one.",
    fix="`marina manifests SPEC` again",
)
def _config(bundle: Bundle, context: Context) -> Iterator[Found]:
    if context.plan is None:
        return
    for workload in _ours(bundle):
        node, wanted = workload.template.at("metadata", "annotations", CONFIG), config_sha256(context.plan)
        if node.value != wanted:
            yield Found(node, f"got `{str(node.value)[:12]}…`, the spec's is `{wanted[:12]}…`; mounted as `{FILE}`")
