"""Which nodes of a cluster pods can run on, by their node selector and required node affinity, as the scheduler reads
them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from config.errors import ClusterError
from k8s.cluster.cluster import Cluster
from k8s.cluster.reference import Document


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
