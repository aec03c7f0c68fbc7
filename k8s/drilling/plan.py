"""What a drill is going to break: the pods, their nodes, and the sentences that say so before anything is done."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from marina.config.errors import ClusterError, InputError, listed
from marina.k8s.cluster import Cluster, Document, Ref, is_ready, label_text
from marina.k8s.drilling.cordon import release_of
from marina.k8s.monitoring import SERVER_CONTAINER

DrillKind = Literal["evict", "kill", "drain", "shutdown", "rollout", "zone"]
KINDS: tuple[DrillKind, ...] = get_args(DrillKind)
_ZONE = "topology.kubernetes.io/zone"
_EXEC = (("", "pods", "exec", "create"),)
_CORDON = (("", "nodes", "", "patch"), ("", "nodes", "", "list"), ("", "pods", "eviction", "create"))
# Group, resource, subresource and verb of what each kind does; all of them read the Deployment and its pods.
_NEEDS: dict[DrillKind, tuple[tuple[str, str, str, str], ...]] = {
    "evict": (("", "pods", "eviction", "create"),),
    "kill": _EXEC,
    "drain": _CORDON,
    "shutdown": _EXEC,
    "rollout": (("apps", "deployments", "", "patch"),),
    "zone": _CORDON,
}


@dataclass(frozen=True)
class DrillPlan:
    """One drill. The names of `pods` and `nodes` are sorted."""

    kind: DrillKind
    name: str
    namespace: str
    wanted: int
    """How many pods the Deployment wants."""
    selector: str
    pods: tuple[str, ...]
    nodes: tuple[str, ...] = ()
    zone: str = ""

    @property
    def deployment(self) -> Ref:
        return Ref("apps/v1", "Deployment", self.namespace, self.name)

    @property
    def release(self) -> str:
        return release_of(self.namespace, self.name)

    @property
    def cordons(self) -> bool:
        """Whether nodes are closed to new pods for as long as the drill takes."""
        return self.kind in ("drain", "zone")

    @property
    def stays(self) -> bool:
        """Whether the broken pod stays, and its container is started again."""
        return self.kind in ("kill", "shutdown")

    def sentences(self) -> Iterator[str]:
        """What will be done, each sentence with what it is done to."""
        where = f"{self.name} in namespace {self.namespace}, {self.wanted} pods"
        yield f"drill {self.kind}: {where}, while they are under load"
        pods = ", ".join(self.pods)
        if self.kind == "evict":
            yield f"will evict pod {pods}, as soon as the disruption budget allows it"
        elif self.kind == "kill":
            yield f"will send SIGKILL to TorchServe in pod {pods}; what it is answering is lost"
        elif self.kind == "shutdown":
            yield f"will send SIGTERM to the server in pod {pods}, as a node that shuts down does: /ready stays 200"
        elif self.kind == "rollout":
            yield f"will restart Deployment {self.name}, which replaces all of its pods"
        else:
            of = f" of zone {self.zone}" if self.zone else ""
            yield f"will cordon node {', '.join(self.nodes)}{of}, for all pods of the cluster, until the drill ends"
            yield f"will evict pod {pods}, as the disruption budget allows it, and no pod of others"


def plan_drill(cluster: Cluster, namespace: str, name: str, kind: DrillKind, on: str | None = None) -> DrillPlan:
    """Reads what is deployed. `on` is the pod, node or zone to break; by default those of the first pod. Raises
    InputError if it is not one of this release's, ClusterError if there is nothing to break."""
    ref = Ref("apps/v1", "Deployment", namespace, name)
    deployment = cluster.get(ref)
    if deployment is None:
        raise ClusterError(f"there is no {ref} in namespace `{namespace}`", hint="marina deploy SPEC")
    if deployment["spec"].get("paused"):
        raise ClusterError(f"{ref} is paused: a rollout waits at its gate", hint="marina status SPEC")
    selector = label_text(deployment["spec"]["selector"]["matchLabels"])
    wanted = int(deployment["spec"].get("replicas", 1))
    pods = {pod["metadata"]["name"]: pod for pod in read_pods(cluster, namespace, selector) if is_serving(pod)}
    if len(pods) < wanted or not pods:
        text = f"only {len(pods)} of {wanted} pods are ready, and a drill starts with a service that is whole"
        raise ClusterError(text, hint="marina status SPEC")
    made = DrillPlan(kind, name, namespace, wanted, selector, tuple(sorted(pods)))
    if kind == "rollout":
        if on is not None:
            raise InputError("`--on`: not with `rollout`, which replaces all pods")
        return made
    if not made.cordons:
        return _of_a_pod(made, pods, on)
    return _of_nodes(cluster, made, pods, on)


def _of_a_pod(made: DrillPlan, pods: dict[str, Document], on: str | None) -> DrillPlan:
    chosen = _chosen("pod", on, sorted(pods))
    if made.stays and pods[chosen]["spec"].get("shareProcessNamespace"):
        text = f"pod {chosen} shares its process namespace, so process 1 is not the server"
        raise InputError(text, hint=f"marina drill SPEC evict --on {chosen}")
    return DrillPlan(made.kind, made.name, made.namespace, made.wanted, made.selector, (chosen,))


def _of_nodes(cluster: Cluster, made: DrillPlan, pods: dict[str, Document], on: str | None) -> DrillPlan:
    node_of = {name: str(pod["spec"].get("nodeName") or "") for name, pod in pods.items()}
    nodes = {node["metadata"]["name"]: node for node in cluster.list("v1", "Node", "")}
    zone_of = {name: str((node["metadata"].get("labels") or {}).get(_ZONE, "")) for name, node in nodes.items()}
    zone = ""
    if made.kind == "zone":
        zones = sorted({zone_of.get(node, "") for node in node_of.values()} - {""})
        if not zones:
            raise ClusterError(f"no node of these pods has the label `{_ZONE}`", hint="marina drill SPEC drain")
        zone = _chosen("zone", on, zones)
        broken = [name for name, its in zone_of.items() if its == zone]
    else:
        broken = [_chosen("node", on, sorted(set(node_of.values())))]
    closed = [name for name in broken if nodes[name]["spec"].get("unschedulable")]
    if closed and made.kind == "drain":
        raise InputError(f"node {closed[0]} is already cordoned", hint=f"kubectl uncordon {closed[0]}")
    broken = sorted(set(broken) - set(closed))
    on_them = tuple(sorted(name for name, node in node_of.items() if node in broken))
    return DrillPlan(
        made.kind, made.name, made.namespace, made.wanted, made.selector, on_them, nodes=tuple(broken), zone=zone
    )


def _chosen(what: str, on: str | None, allowed: list[str]) -> str:
    if on is None:
        return allowed[0]
    if on not in allowed:
        raise InputError(f"`--on`: got `{on}`, allowed, as a {what} of this service: {listed(allowed)}")
    return on


def read_pods(cluster: Cluster, namespace: str, selector: str) -> list[Document]:
    return cluster.list("v1", "Pod", namespace, labels=selector)


def is_serving(pod: Document) -> bool:
    """Whether it is ready and not about to end."""
    return is_ready(pod) and not pod["metadata"].get("deletionTimestamp")


def server_container(pod: Document) -> str:
    """The container that serves; the first one if none has the usual name."""
    names = [str(container["name"]) for container in pod["spec"]["containers"]]
    return SERVER_CONTAINER if SERVER_CONTAINER in names else names[0]


def check_drill_permissions(cluster: Cluster, plan: DrillPlan) -> None:
    """Raises ClusterError with all that the user may not do of what the drill does."""
    missing = []
    for group, resource, subresource, verb in _NEEDS[plan.kind]:
        space = "" if resource == "nodes" else plan.namespace
        asked = {"group": group, "resource": resource, "subresource": subresource, "verb": verb, "namespace": space}
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        answer = cluster.request("POST", path, review | {"spec": {"resourceAttributes": asked}})
        if not (answer.get("status") or {}).get("allowed"):
            missing.append(f"{verb} {resource}{f'/{subresource}' if subresource else ''}")
    if missing:
        text = f"you may not {listed(missing)}, which this drill does"
        raise ClusterError(
            text, hint="an administrator binds you to a Role, or for nodes a ClusterRole, with these verbs"
        )
