"""The environment of a service in a cluster: the capacity of the nodes, the limits of the namespace, and the labels by
which Prometheus selects.

What may not be read is left out; it does not stop a deployment."""

from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress

from marina.config.errors import ClusterError
from marina.k8s.cluster.cluster import Cluster
from marina.k8s.cluster.nodes import meets_expression, number_of, schedulable_nodes
from marina.k8s.cluster.reference import Document

_GIB = 2**30
_OPERATOR = "monitoring.coreos.com/v1"
_SELECTORS = {"PodMonitor": "podMonitor", "ServiceMonitor": "serviceMonitor", "PrometheusRule": "rule"}


def describe_capacity(cluster: Cluster) -> str:
    """The capacity of the nodes that accept pods, in a sentence; empty if the nodes cannot be listed."""
    offers = [(node.get("status") or {}).get("allocatable") or {} for node in schedulable_nodes(cluster)]
    if not offers:
        return ""
    total: dict[str, float] = defaultdict(float)
    for offer in offers:
        for name in offer:
            total[name] += number_of(offer, name)
    largest = max(offers, key=lambda offer: number_of(offer, "cpu"))
    gpus = [f"{total[name]:g} {name}" for name in sorted(total) if "gpu" in name or name.startswith("nvidia.com/")]
    parts = [f"{total['cpu']:g} cpu", f"{total['memory'] / _GIB:.0f} GiB", *(gpus or ["no GPU"])]
    text = (
        f"{len(offers)} node{'s' if len(offers) > 1 else ''} offer{'' if len(offers) > 1 else 's'} {', '.join(parts)}"
    )
    return f"{text}; the largest has {number_of(largest, 'cpu'):g} cpu, {number_of(largest, 'memory') / _GIB:.0f} GiB"


def namespace_limits(cluster: Cluster, namespace: str) -> list[str]:
    """The quotas and LimitRanges of a namespace, a sentence each."""
    texts = []
    for quota in _items(cluster, "v1", "ResourceQuota", namespace):
        hard, used = quota["spec"].get("hard") or {}, (quota.get("status") or {}).get("used") or {}
        amounts = ", ".join(f"{name} {used.get(name, '0')} of {amount}" for name, amount in sorted(hard.items()))
        texts.append(f"quota `{quota['metadata']['name']}` in use: {amounts}")
    for ranges in _items(cluster, "v1", "LimitRange", namespace):
        for limit in ranges["spec"].get("limits") or []:
            bounds = [f"{bound} {_pairs(limit[bound])}" for bound in ("min", "max", "default") if limit.get(bound)]
            if bounds:
                texts.append(f"LimitRange `{ranges['metadata']['name']}`, per {limit['type']}: {'; '.join(bounds)}")
    return texts


def unselected_monitors(cluster: Cluster, documents: Iterable[Document], namespace: str) -> list[str]:
    """A sentence for each monitor or rule that no Prometheus of the operator selects, with the labels they select."""
    watched = [document for document in documents if document["kind"] in _SELECTORS]
    servers = _items(cluster, _OPERATOR, "Prometheus", "") if watched else []
    texts = []
    for document in watched if servers else []:
        if not any(_selects(cluster, server, document, namespace) for server in servers):
            text = f"no Prometheus selects {document['kind']} {document['metadata']['name']}"
            texts.append(f"{text}: {selected_labels(servers, document['kind'])}; see `kubernetes.monitoring.labels`")
    return texts


def prometheus_selectors(cluster: Cluster) -> str:
    """The labels by which the operator's Prometheus servers select PodMonitors; empty if there are none to be seen."""
    servers = _items(cluster, _OPERATOR, "Prometheus", "")
    return selected_labels(servers, "PodMonitor") if servers else ""


def selected_labels(servers: Iterable[Document], kind: str) -> str:
    """The labels by which each Prometheus server selects objects of a kind."""
    return "; ".join(
        f"`{server['metadata']['namespace']}/{server['metadata']['name']}` selects "
        f"{_wanted(server['spec'].get(f'{_SELECTORS[kind]}Selector'))}"
        for server in servers
    )


def _selects(cluster: Cluster, server: Document, document: Document, namespace: str) -> bool:
    field, spec = _SELECTORS[document["kind"]], server["spec"]
    if not _fits(spec.get(f"{field}Selector"), document["metadata"].get("labels") or {}):
        return False
    spaces = spec.get(f"{field}NamespaceSelector")
    # Without a namespace selector, the operator only looks in the server's own namespace.
    if spaces is None:
        return bool(server["metadata"]["namespace"] == namespace)
    labels = {"kubernetes.io/metadata.name": namespace}
    for space in _items(cluster, "v1", "Namespace", "", fields=f"metadata.name={namespace}"):
        labels |= space["metadata"].get("labels") or {}
    return _fits(spaces, labels)


def _fits(selector: Document | None, labels: dict[str, str]) -> bool:
    """Whether a selector matches labels; None matches nothing, an empty one everything."""
    if selector is None:
        return False
    met = all(meets_expression(labels, expression) for expression in selector.get("matchExpressions") or [])
    return met and (selector.get("matchLabels") or {}).items() <= labels.items()


def _wanted(selector: Document | None) -> str:
    if selector is None:
        return "none"
    labels = [f"{key}={value}" for key, value in sorted((selector.get("matchLabels") or {}).items())]
    for expression in selector.get("matchExpressions") or []:
        labels.append(
            f"{expression['key']} {expression['operator']} {' '.join(expression.get('values') or [])}".strip()
        )
    return f"`{', '.join(labels)}`" if labels else "any label"


def _items(cluster: Cluster, version: str, kind: str, namespace: str, *, fields: str = "") -> list[Document]:
    with suppress(ClusterError):
        items: list[Document] = cluster.list(version, kind, namespace, fields=fields)["items"]
        return items
    return []


def _pairs(amounts: dict[str, str]) -> str:
    return ", ".join(f"{name} {amount}" for name, amount in sorted(amounts.items()))
