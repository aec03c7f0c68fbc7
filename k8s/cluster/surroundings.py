"""What a cluster has around a service: what its nodes offer, what a namespace may use, which labels Prometheus selects.

Without the rights to read them, nothing is said about them, and a deployment goes on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress

from config.errors import ClusterError
from config.quantity import quantity
from k8s.cluster.cluster import Cluster
from k8s.cluster.nodes import meets, takers
from k8s.cluster.reference import Document

_GIB = 2**30
_OPERATOR = "monitoring.coreos.com/v1"
_SELECTORS = {"PodMonitor": "podMonitor", "ServiceMonitor": "serviceMonitor", "PrometheusRule": "rule"}


def allocatable(cluster: Cluster) -> str:
    """What the nodes that take pods offer; empty where it cannot be seen."""
    offers = [(node.get("status") or {}).get("allocatable") or {} for node in takers(cluster)]
    if not offers:
        return ""
    total: dict[str, float] = defaultdict(float)
    for offer in offers:
        for name in offer:
            total[name] += _number(offer, name)
    largest = max(offers, key=lambda offer: _number(offer, "cpu"))
    gpus = [f"{total[name]:g} {name}" for name in sorted(total) if "gpu" in name or name.startswith("nvidia.com/")]
    parts = [f"{total['cpu']:g} cpu", f"{total['memory'] / _GIB:.0f} GiB", *(gpus or ["no GPU"])]
    text = (
        f"{len(offers)} node{'s' if len(offers) > 1 else ''} offer{'' if len(offers) > 1 else 's'} {', '.join(parts)}"
    )
    return f"{text}; the largest has {_number(largest, 'cpu'):g} cpu, {_number(largest, 'memory') / _GIB:.0f} GiB"


def namespace_limits(cluster: Cluster, namespace: str) -> list[str]:
    """What quotas and LimitRanges say, one sentence each."""
    texts = []
    for quota in _items(cluster, "v1", "ResourceQuota", namespace):
        hard, used = quota["spec"].get("hard") or {}, (quota.get("status") or {}).get("used") or {}
        amounts = ", ".join(f"{name} {used.get(name, '0')} of {amount}" for name, amount in sorted(hard.items()))
        texts.append(f"quota `{quota['metadata']['name']}` in use: {amounts}")
    for ranges in _items(cluster, "v1", "LimitRange", namespace):
        for limit in ranges["spec"].get("limits") or []:
            bounds = [f"{bound} {_pairs(limit[bound])}" for bound in ("min", "max", "default") if limit.get(bound)]
            if bounds:
                texts.append(f"LimitRange `{ranges['metadata']['name']}`, each {limit['type']}: {'; '.join(bounds)}")
    return texts


def unselected(cluster: Cluster, documents: Iterable[Document], namespace: str) -> list[str]:
    """Monitors and rules that no Prometheus of the operator would look at, with the labels that one of them wants."""
    watched = [document for document in documents if document["kind"] in _SELECTORS]
    servers = _items(cluster, _OPERATOR, "Prometheus", "") if watched else []
    texts = []
    for document in watched if servers else []:
        if not any(_selects(cluster, server, document, namespace) for server in servers):
            text = f"no Prometheus selects {document['kind']} {document['metadata']['name']}"
            texts.append(f"{text}: {selected_labels(servers, document['kind'])}; see `kubernetes.monitoring.labels`")
    return texts


def prometheus_labels(cluster: Cluster) -> str:
    """Which pod monitors the operator's Prometheus servers select; empty where none can be seen."""
    servers = _items(cluster, _OPERATOR, "Prometheus", "")
    return selected_labels(servers, "PodMonitor") if servers else ""


def selected_labels(servers: Iterable[Document], kind: str) -> str:
    """What each Prometheus server wants of the labels of a kind."""
    return "; ".join(
        f"`{server['metadata']['namespace']}/{server['metadata']['name']}` wants "
        f"{_wanted(server['spec'].get(f'{_SELECTORS[kind]}Selector'))}"
        for server in servers
    )


def _selects(cluster: Cluster, server: Document, document: Document, namespace: str) -> bool:
    field, spec = _SELECTORS[document["kind"]], server["spec"]
    if not _fits(spec.get(f"{field}Selector"), document["metadata"].get("labels") or {}):
        return False
    spaces = spec.get(f"{field}NamespaceSelector")
    # Without a selector of namespaces, the operator looks in the server's own.
    if spaces is None:
        return bool(server["metadata"]["namespace"] == namespace)
    labels = {"kubernetes.io/metadata.name": namespace}
    for space in _items(cluster, "v1", "Namespace", "", fields=f"metadata.name={namespace}"):
        labels |= space["metadata"].get("labels") or {}
    return _fits(spaces, labels)


def _fits(selector: Document | None, labels: dict[str, str]) -> bool:
    """Whether labels fit a selector: none selects nothing, an empty one everything."""
    if selector is None:
        return False
    met = all(meets(labels, expression) for expression in selector.get("matchExpressions") or [])
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


def _number(amounts: dict[str, str], name: str) -> float:
    with suppress(ValueError):
        return quantity(str(amounts.get(name, "0")))
    return 0.0


def _pairs(amounts: dict[str, str]) -> str:
    return ", ".join(f"{name} {amount}" for name, amount in sorted(amounts.items()))
