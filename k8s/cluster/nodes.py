"""Which nodes of a cluster pods can run on, by their node selector and required node affinity, as the scheduler reads
them."""

from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from marina.config.errors import ClusterError
from marina.config.quantity import quantity
from marina.k8s.cluster.cluster import Cluster
from marina.k8s.cluster.reference import Document

# A larger cluster has too many pods to list them all, and adds nodes by itself.
_MOST_NODES = 100
# How many nodes without room are named.
_SHOWN = 5


@dataclass(frozen=True)
class NodeFit:
    """The nodes that pods can run on, and the others, each with what it lacks."""

    nodes: tuple[str, ...]
    others: dict[str, tuple[str, ...]]


def fitting_nodes(cluster: Cluster, pod: Document) -> NodeFit | None:
    """The nodes that pods of this `spec` can run on; None if they can run on any, or if the nodes cannot be listed."""
    affinity = (pod.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    selector: dict[str, str] = pod.get("nodeSelector") or {}
    if not selector and not required:
        return None
    terms = required.get("nodeSelectorTerms") or [] if required else None
    lacking = {node["metadata"]["name"]: _lacking(node, selector, terms) for node in schedulable_nodes(cluster)}
    if not lacking:
        return None
    return NodeFit(
        tuple(name for name, missing in lacking.items() if not missing),
        {name: missing for name, missing in lacking.items() if missing},
    )


def missing_room(cluster: Cluster, pod: Document, fit: NodeFit | None = None) -> str:
    """That no node has room for one more pod of this `spec`, with the room that each would need; empty if one has room,
    or if nodes or pods cannot be listed. Only nodes of `fit` count; None: all. Taints are not looked at."""
    wanted = _requests(pod)
    nodes = [node for node in schedulable_nodes(cluster) if fit is None or node["metadata"]["name"] in fit.nodes]
    running: list[Document] = []
    if 0 < len(nodes) <= _MOST_NODES:
        with suppress(ClusterError):
            running = cluster.list("v1", "Pod", "", fields="status.phase!=Succeeded,status.phase!=Failed")["items"]
    if not running:
        return ""
    used: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for other in running:
        for name, number in _requests(other["spec"]).items():
            used[other["spec"].get("nodeName", "")][name] += number
    texts = []
    for node in nodes:
        offer = (node.get("status") or {}).get("allocatable") or {}
        named = node["metadata"]["name"]
        free = {name: number_of(offer, name) - used[named][name] for name in wanted if name in offer}
        short = [name for name in wanted if free.get(name, 0.0 if "/" in name else wanted[name]) < wanted[name]]
        if not short:
            return ""
        texts.append(f"`{named}` lacks {', '.join(short)}")
    asked = ", ".join(f"{name} {_shown(name, number)}" for name, number in wanted.items())
    return f"no node has room for one more pod, which requests {asked}: {'; '.join(texts[:_SHOWN])}"


def _requests(pod: Document) -> dict[str, float]:
    """What the scheduler counts for a pod of this `spec`, without what only init containers need."""
    total: dict[str, float] = defaultdict(float)
    sidecars = [part for part in pod.get("initContainers") or [] if part.get("restartPolicy") == "Always"]
    for container in [*pod["containers"], *sidecars]:
        resources = container.get("resources") or {}
        amounts = (resources.get("limits") or {}) | (resources.get("requests") or {})
        for name in amounts:
            total[name] += number_of(amounts, name)
    return total


def number_of(amounts: Mapping[str, str], name: str) -> float:
    """The amount of a resource; 0 if there is none, or it is no quantity."""
    with suppress(ValueError):
        return quantity(str(amounts.get(name, "0")))
    return 0.0


def _shown(name: str, number: float) -> str:
    """A number of a resource, as people write it."""
    return f"{number / 2**30:.3g}Gi" if name in ("memory", "ephemeral-storage") else f"{number:g}"


def schedulable_nodes(cluster: Cluster) -> list[Document]:
    """The nodes that accept new pods; empty if the nodes cannot be listed."""
    with suppress(ClusterError):
        nodes: list[Document] = cluster.list("v1", "Node", "")["items"]
        return [node for node in nodes if not node.get("spec", {}).get("unschedulable")]
    return []


def _lacking(node: Document, selector: Mapping[str, str], terms: list[Document] | None) -> tuple[str, ...]:
    labels = node["metadata"].get("labels") or {}
    missing = [f"{name}={value}" for name, value in sorted(selector.items()) if labels.get(name) != value]
    if terms is not None:
        # One matching term is enough, so report what the node lacks for the term that it nearly matches.
        nearest: list[str] = min((_unmet(node, term) for term in terms or [{}]), key=len)
        missing += nearest
    return tuple(missing)


def _unmet(node: Document, term: Document) -> list[str]:
    labels, fields = node["metadata"].get("labels") or {}, {"metadata.name": node["metadata"]["name"]}
    asked = [(labels, expression) for expression in term.get("matchExpressions") or []]
    asked += [(fields, expression) for expression in term.get("matchFields") or []]
    if not asked:
        return ["a match for an empty term, which no node has"]
    return [_describe(wanted) for values, wanted in asked if not meets_expression(values, wanted)]


def meets_expression(given: Mapping[str, str], wanted: Document) -> bool:
    """Whether labels satisfy an expression of a selector."""
    key, operator, values = wanted["key"], wanted["operator"], wanted.get("values") or []
    if operator == "Exists":
        return key in given
    if operator == "DoesNotExist":
        return key not in given
    if operator == "NotIn":
        return given.get(key) not in values
    if operator == "In":
        return given.get(key) in values
    # `Gt` and `Lt` compare whole numbers; any other value satisfies neither.
    with suppress(ValueError):
        number, bound = int(given.get(key, "")), int("".join(values))
        return number > bound if operator == "Gt" else number < bound
    return False


def _describe(wanted: Document) -> str:
    key, operator, values = wanted["key"], wanted["operator"], wanted.get("values") or []
    if operator == "In" and len(values) == 1:
        return f"{key}={values[0]}"
    return " ".join([key, operator, *values])
