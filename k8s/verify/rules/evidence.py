"""Rules about the origin of manifests: the package that was built, its configuration, and what was measured of it."""

from collections.abc import Iterator

from k8s.manifests import CONFIG_ANNOTATION, CONFIG_FILE, EVIDENCE_ANNOTATION, PACKAGE_ANNOTATION, config_sha256
from k8s.verify.application import Application
from k8s.verify.located import Place
from k8s.verify.rule import Remark, Scope, Topic

TOPIC = Topic("Evidence")


@TOPIC.rule(
    "package-differs",
    "error",
    what="The pods' annotation names another package than the one that was built.",
    why="Only the annotation shows it: what is deployed is not what was measured.",
    fix="`marina manifests SPEC` again, after `marina image SPEC`",
)
def _package(application: Application, scope: Scope) -> Iterator[Remark]:
    package = scope.plan.package if scope.plan else None
    for workload in application.made_by_marina if package else []:
        node = workload.template.at("metadata", "annotations", PACKAGE_ANNOTATION)
        if package and node.value != package.sha256:
            yield Remark(node, f"{_got(node)}, but `{package.sha256[:12]}…` was built")


@TOPIC.rule(
    "evidence-differs",
    "error",
    what="An object's annotation names other evidence than the latest.",
    why="Its limits, probes or targets come from another measurement.",
    fix="`marina manifests SPEC` again",
)
def _evidence(application: Application, scope: Scope) -> Iterator[Remark]:
    if scope.plan is None:
        return
    measured = scope.plan.evidence.sha256 if scope.plan.evidence else None
    ours = [scaler for scaler in application.scalers if scaler.name == scope.plan.name]
    for document in [*(workload.document for workload in application.made_by_marina), *ours]:
        node = document.root.at("metadata", "annotations", EVIDENCE_ANNOTATION)
        if node.value != measured:
            latest = f"the latest evidence is `{measured[:12]}…`" if measured else "nothing was measured"
            yield Remark(node, f"{_got(node)}, but {latest}")


@TOPIC.rule(
    "config-differs",
    "error",
    what="The pods' annotation does not match the spec's configuration.",
    why="The annotation starts new pods when the configuration changes: with a stale one, only pods that start later "
    "get the new configuration.",
    fix="`marina manifests SPEC` again",
)
def _config(application: Application, scope: Scope) -> Iterator[Remark]:
    if scope.plan is None:
        return
    for workload in application.made_by_marina:
        node, wanted = workload.template.at("metadata", "annotations", CONFIG_ANNOTATION), config_sha256(scope.plan)
        if node.value != wanted:
            yield Remark(node, f"{_got(node)}, the spec's is `{wanted[:12]}…`; mounted as `{CONFIG_FILE}`")


def _got(hash_: Place) -> str:
    return f"got `{str(hash_.value)[:12]}…`" if hash_.given else "missing"
