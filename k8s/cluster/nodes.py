"""Which nodes of a cluster pods may run on, by their selector and their required affinity, as the scheduler reads
both."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from config.errors import ClusterError
from k8s.cluster.cluster import Cluster
from k8s.cluster.reference import Document


@dataclass(frozen=True)
class Fitting:
    """Nodes that pods may run on, and the others, each with what is missing on it."""

    nodes: tuple[str, ...]
    others: dict[str, tuple[str, ...]]


def fitting(cluster: Cluster, pod: Document) -> Fitting | None:
    """Which nodes pods of a template's `spec` may run on; None where they may run on any, or nodes cannot be seen."""
    affinity = (pod.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    selector: dict[str, str] = pod.get("nodeSelector") or {}
    if not selector and not required:
        return None
    terms = required.get("nodeSelectorTerms") or [] if required else None
    lacking = {node["metadata"]["name"]: _lacking(node, selector, terms) for node in takers(cluster)}
    if not lacking:
        return None
    return Fitting(
        tuple(name for name, missing in lacking.items() if not missing),
        {name: missing for name, missing in lacking.items() if missing},
    )


def takers(cluster: Cluster) -> list[Document]:
    """The nodes that take new pods; none where they cannot be seen."""
    with suppress(ClusterError):
        nodes: list[Document] = cluster.list("v1", "Node", "")["items"]
        return [node for node in nodes if not node.get("spec", {}).get("unschedulable")]
    return []


def _lacking(node: Document, selector: Mapping[str, str], terms: list[Document] | None) -> tuple[str, ...]:
    labels = node["metadata"].get("labels") or {}
    missing = [f"{name}={value}" for name, value in sorted(selector.items()) if labels.get(name) != value]
    if terms is not None:
        # One term is enough, so what is said is what keeps the node from the nearest.
        nearest: list[str] = min((_unmet(node, term) for term in terms or [{}]), key=len)
        missing += nearest
    return tuple(missing)


def _unmet(node: Document, term: Document) -> list[str]:
    labels, fields = node["metadata"].get("labels") or {}, {"metadata.name": node["metadata"]["name"]}
    asked = [(labels, expression) for expression in term.get("matchExpressions") or []]
    asked += [(fields, expression) for expression in term.get("matchFields") or []]
    if not asked:
        return ["what an empty term asks, which no node has"]
    return [_in_words(wanted) for values, wanted in asked if not meets(values, wanted)]


def meets(given: Mapping[str, str], wanted: Document) -> bool:
    """Whether labels are as an expression of a selector wants them."""
    key, operator, values = wanted["key"], wanted["operator"], wanted.get("values") or []
    if operator == "Exists":
        return key in given
    if operator == "DoesNotExist":
        return key not in given
    if operator == "NotIn":
        return given.get(key) not in values
    if operator == "In":
        return given.get(key) in values
    # `Gt` and `Lt` compare whole numbers; what is none fits neither.
    with suppress(ValueError):
        number, bound = int(given.get(key, "")), int("".join(values))
        return number > bound if operator == "Gt" else number < bound
    return False


def _in_words(wanted: Document) -> str:
    key, operator, values = wanted["key"], wanted["operator"], wanted.get("values") or []
    if operator == "In" and len(values) == 1:
        return f"{key}={values[0]}"
    return " ".join([key, operator, *values])
