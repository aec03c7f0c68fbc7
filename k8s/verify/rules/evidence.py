"""The rule about the origin of manifests: the package that was built, its settings, and what was measured of it."""

from collections.abc import Iterator

from marina.k8s.manifests import CONFIG_ANNOTATION, EVIDENCE_ANNOTATION, PACKAGE_ANNOTATION, config_sha256
from marina.k8s.verify.application import Application
from marina.k8s.verify.located import Place
from marina.k8s.verify.rule import Remark, Scope, Topic

TOPIC = Topic("Evidence")


@TOPIC.rule(
    "origin-differs",
    "error",
    what="An annotation names another package, configuration or evidence than the newest.",
    why="Only the annotation shows it: what is deployed is not what was measured, its limits, probes and targets come "
    "from another measurement, or its pods keep an old configuration.",
    fix="`marina manifests SPEC` again, after `marina image SPEC`",
)
def _origin(application: Application, scope: Scope) -> Iterator[Remark]:
    plan = scope.plan
    if plan is None:
        return
    measured = plan.evidence.sha256 if plan.evidence else None
    for workload in application.made_by_marina:
        of_pods = workload.template.at("metadata", "annotations")
        if plan.package:
            yield from _unless_same(of_pods.at(PACKAGE_ANNOTATION), "built", plan.package.sha256)
        yield from _unless_same(of_pods.at(CONFIG_ANNOTATION), "in the spec", config_sha256(plan))
    ours = [scaler for scaler in application.scalers if scaler.name == plan.name]
    for document in [*(workload.document for workload in application.made_by_marina), *ours]:
        yield from _unless_same(document.root.at("metadata", "annotations", EVIDENCE_ANNOTATION), "measured", measured)


def _unless_same(annotation: Place, how: str, wanted: str | None) -> Iterator[Remark]:
    if annotation.value != wanted:
        got = f"got `{str(annotation.value)[:12]}…`" if annotation.given else "missing"
        yield Remark(annotation, f"{got}, but {f'`{wanted[:12]}…`' if wanted else 'nothing'} was {how}")
