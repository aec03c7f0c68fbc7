"""Pods on nodes that the cloud may take away: where they may run, how many stay on nodes that it may not, and what fits
into the notice that it gives."""

import math
from dataclasses import dataclass
from fractions import Fraction

from marina.k8s.manifests.plan import JAVA_END_S, Plan
from marina.k8s.manifests.yaml_text import Manifest

SPREAD_KEY = "capacity-spread"
"""The label of nodes by whose values pods are spread; its values are numbers, the first of which are on demand."""
# From the start of a node until it runs pods, and the pull of an image of a gigabyte: assumed, not measured.
NODE_S, UNMEASURED_START_S = 90, 60
# How long an ALB that sends to pods goes on sending after it was told not to.
ALB_S = 17


@dataclass(frozen=True)
class Cloud:
    """What one provider does with spot nodes."""

    notice_s: int
    """How long pods have, from the notice until they are killed."""
    key: str
    """The label of spot nodes, and of the taint that they have, or may have."""
    value: str
    evicts: bool
    """Whether pods are evicted, which respects the disruption budget; otherwise the kubelet ends all at once."""
    tainted: bool
    on_demand: str = ""
    """The value of the label on other nodes; empty if these have no such label."""


CLOUDS = {
    "eks": Cloud(120, "karpenter.sh/capacity-type", "spot", evicts=True, tainted=False, on_demand="on-demand"),
    "gke": Cloud(15, "cloud.google.com/gke-spot", "true", evicts=False, tainted=True),
    "aks": Cloud(30, "kubernetes.azure.com/scalesetpriority", "spot", evicts=True, tainted=True),
}


def cloud_of(plan: Plan) -> Cloud | None:
    """The cloud whose spot nodes the pods may run on; None if they may not."""
    spot = plan.spec.kubernetes.spot
    return CLOUDS[spot.provider] if spot else None


def notice_s(plan: Plan) -> int:
    """How long pods have from the notice until they are killed."""
    spot = plan.spec.kubernetes.spot
    assert spot
    return CLOUDS[spot.provider].notice_s if spot.notice_s is None else spot.notice_s


def replacement_s(plan: Plan) -> int:
    """How long it takes until another pod serves in place of one, on a node that has to be started."""
    return NODE_S + math.ceil(UNMEASURED_START_S if plan.cold_start_s is None else plan.cold_start_s)


def most_pods_per_node(plan: Plan) -> int:
    """How many pods may be on a spot node, so that none of them is lost when it is taken away.

    If they are evicted, the budget lets each go only once the one before it is replaced, and the last one must drain,
    too. If the kubelet ends all at once, others must be left."""
    cloud, left_s = cloud_of(plan), notice_s(plan) - plan.grace_period_s
    if cloud and cloud.evicts:
        return max(1, 1 + math.floor(left_s / replacement_s(plan)))
    return max(1, plan.spec.scaling.min_replicas - 1)


def fitting_drain(plan: Plan) -> tuple[int, int] | None:
    """A propagation and a bound on the answers, s, that fit into the notice: as much of the propagation as leaves time
    for an answer that meets the objective. None if there is no room for both."""
    slo, serving = plan.spec.slo, plan.spec.serving
    answer_s = max(1, math.ceil(slo.p99_ms / 1000) if slo else 1)
    room_s = notice_s(plan) - JAVA_END_S
    propagation_s = min(math.ceil(serving.drain_propagation_s), room_s - answer_s)
    return None if propagation_s < 1 else (propagation_s, room_s - propagation_s)


def domains(plan: Plan) -> tuple[int, int]:
    """How many values of the label are of nodes on demand, and how many there are: 1 of 5 keeps a fifth of the pods
    there. (0, 1) if all pods may be on spot nodes."""
    spot = plan.spec.kubernetes.spot
    share = Fraction(int(spot.on_demand.removesuffix("%")) if spot else 0, 100)
    return share.numerator, share.denominator


def spot_affinity(plan: Plan) -> Manifest | None:
    """Where pods may run: on spot nodes only, or on all nodes that are spread over."""
    cloud = cloud_of(plan)
    if cloud is None:
        return None
    wanted: list[Manifest] = []
    if domains(plan)[0]:
        wanted.append({"key": SPREAD_KEY, "operator": "Exists"})
    if cloud.on_demand or not wanted:
        values = [cloud.on_demand] if wanted else []
        wanted.insert(0, {"key": cloud.key, "operator": "In", "values": [*values, cloud.value]})
    required = {"nodeSelectorTerms": [{"matchExpressions": wanted}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def spot_tolerations(plan: Plan) -> list[Manifest]:
    """The taint of spot nodes."""
    cloud = cloud_of(plan)
    if cloud is None or not cloud.tainted:
        return []
    return [{"effect": "NoSchedule", "key": cloud.key, "operator": "Equal", "value": cloud.value}]


def spot_skews(plan: Plan) -> dict[str, int]:
    """By which labels of nodes pods must be spread, and how unevenly they may be: to keep the share on demand, and the
    pods of one node few."""
    spot = plan.spec.kubernetes.spot
    if spot is None:
        return {}
    return ({SPREAD_KEY: 1} if domains(plan)[0] else {}) | {"kubernetes.io/hostname": spot.pods_per_node}
