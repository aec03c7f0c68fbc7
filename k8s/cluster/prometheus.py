"""The labels by which the Prometheus operator's servers select monitors and rules. What may not be read is left out; it
does not stop a deployment."""

from collections.abc import Iterable
from contextlib import suppress

from marina.config.errors import ClusterError
from marina.k8s.cluster.client import Cluster, Document

_SELECTORS = {"PodMonitor": "podMonitorSelector", "PrometheusRule": "ruleSelector"}


def prometheus_selectors(cluster: Cluster) -> str:
    """The labels by which Prometheus servers select PodMonitors; empty if there are none to be seen."""
    return _described(_servers(cluster), "PodMonitor")


def unselected_monitors(cluster: Cluster, documents: Iterable[Document]) -> list[str]:
    """A sentence for each monitor or rule whose labels no Prometheus selects, with the labels that they select."""
    watched = [document for document in documents if document["kind"] in _SELECTORS]
    servers = _servers(cluster) if watched else []
    return [
        f"no Prometheus selects {document['kind']} {document['metadata']['name']}: "
        f"{_described(servers, document['kind'])}; see `kubernetes.monitoring.labels`"
        for document in watched
        if servers and not any(_selects(server, document) for server in servers)
    ]


def _servers(cluster: Cluster) -> list[Document]:
    with suppress(ClusterError):
        return cluster.list("monitoring.coreos.com/v1", "Prometheus", "")
    return []


def _selects(server: Document, document: Document) -> bool:
    """Whether a server's selector may match; of its expressions that is not known."""
    selector = server["spec"].get(_SELECTORS[document["kind"]])
    if selector is None:
        return False
    return (selector.get("matchLabels") or {}).items() <= (document["metadata"].get("labels") or {}).items()


def _described(servers: Iterable[Document], kind: str) -> str:
    texts = []
    for server in servers:
        selector, name = server["spec"].get(_SELECTORS[kind]), server["metadata"]
        labels = [f"{key}={value}" for key, value in sorted(((selector or {}).get("matchLabels") or {}).items())]
        labels += [
            " ".join([entry["key"], entry["operator"], *(entry.get("values") or [])])
            for entry in (selector or {}).get("matchExpressions") or []
        ]
        wanted = f"`{', '.join(labels)}`" if labels else "none" if selector is None else "any label"
        texts.append(f"`{name['namespace']}/{name['name']}` selects {wanted}")
    return "; ".join(texts)
