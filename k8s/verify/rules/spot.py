"""Whether a pod can end within the notice of a spot node, and what is on such a node can be replaced."""

from collections.abc import Iterator

from marina.k8s.manifests.spot import ALB_S, cloud_of, fitting_drain, most_pods_per_node, notice_s, replacement_s
from marina.k8s.verify.objects import Objects
from marina.k8s.verify.rule import Remark, Rules

RULES = Rules()
# How far GKE lets the notice of pods be extended, on Standard node pools from 1.35.
_GKE_EXTENDED_S = 120


@RULES.rule(
    "spot-drain-fits",
    "error",
    what="A pod cannot drain, or the pods of a node cannot be replaced, within the notice of a spot node.",
    why="The cloud kills what is left, whatever the grace period says: each node that it takes loses requests.",
    fix="less `drain_propagation_s` and `drain_timeout_s` under `serving`, or fewer `kubernetes.spot.pods_per_node`",
)
def _fits(objects: Objects) -> Iterator[Remark]:
    plan, spot = objects.plan, objects.plan.spec.kubernetes.spot
    cloud, grace = cloud_of(plan), objects.pod.at("terminationGracePeriodSeconds")
    if spot is None or cloud is None:
        return
    given_s, serving = notice_s(plan), plan.spec.serving
    allowed_s = plan.grace_period_s if grace.number is None else grace.number
    if allowed_s > given_s:
        parts = f"propagation {serving.drain_propagation_s:g} + answers {serving.drain_timeout_s:g} + 5 to end"
        fitting = fitting_drain(plan)
        lines = f"serving: {{drain_propagation_s: {fitting[0]}, drain_timeout_s: {fitting[1]}}}" if fitting else ""
        longer = f"kubernetes: {{spot: {{provider: gke, notice_s: {_GKE_EXTENDED_S}}}}} once the node pool gives that"
        hints = [lines, longer if spot.provider == "gke" and given_s < _GKE_EXTENDED_S else ""]
        text = f"got {allowed_s} s, but pods on a spot node of {spot.provider} have {given_s} s: {parts}"
        yield Remark(grace, text, ", or ".join(filter(None, hints)) or None)
    most = most_pods_per_node(plan)
    if spot.pods_per_node > most:
        why = (
            f"evicted one by one, each replaced in {replacement_s(plan)} s, within {given_s} s"
            if cloud.evicts
            else f"all end at once, and `scaling.min_replicas` is {plan.spec.scaling.min_replicas}"
        )
        text = f"`kubernetes.spot.pods_per_node` is {spot.pods_per_node}, allowed: {most}: {why}"
        hint = f"kubernetes: {{spot: {{provider: {spot.provider}, pods_per_node: {most}}}}}"
        yield Remark(objects.pod.at("topologySpreadConstraints"), text, hint)
    if plan.spec.kubernetes.route and spot.provider == "eks" and serving.drain_propagation_s < ALB_S:
        text = f"an ALB that sends to pods goes on for {ALB_S} s, and they stop after {serving.drain_propagation_s:g} s"
        yield Remark(grace, text, f"serving: {{drain_propagation_s: {ALB_S}}}", level="warning")
