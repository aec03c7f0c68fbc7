"""What the cluster knows about one pod: how long it took to start, its limits, and its node."""

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from marina.config.errors import ClusterError
from marina.config.quantity import quantity
from marina.k8s.cluster.cluster import Cluster
from marina.k8s.cluster.endpoints import Endpoint
from marina.k8s.cluster.reference import Document, Ref


@dataclass(frozen=True)
class PodFacts:
    """Facts about one pod and its server's container; None or 0 if the cluster does not tell."""

    cold_start_s: float | None
    """From the start of the container to ready; None after a restart, because then the two times do not belong
    together."""
    cores: float | None
    memory_bytes: int | None
    architecture: str
    node_cores: int
    node_memory_bytes: int | None
    system: str


def read_pod_facts(cluster: Cluster, endpoint: Endpoint) -> PodFacts:
    """Reads the facts from the pod as it was listed, and from its node if that may be read."""
    pod, container = endpoint.pod, _container(endpoint)
    limits = (container.get("resources") or {}).get("limits") or {}
    node = _node(cluster, pod["spec"].get("nodeName"))
    info, capacity = node.get("nodeInfo") or {}, node.get("capacity") or {}
    return PodFacts(
        cold_start_s=_cold_start_s(pod, container["name"]),
        cores=quantity(str(limits["cpu"])) if "cpu" in limits else None,
        memory_bytes=int(quantity(str(limits["memory"]))) if "memory" in limits else None,
        architecture=info.get("architecture", "unknown"),
        node_cores=int(quantity(str(capacity.get("cpu", "0")))),
        node_memory_bytes=int(quantity(capacity["memory"])) if "memory" in capacity else None,
        system=info.get("osImage", "unknown"),
    )


def _container(endpoint: Endpoint) -> Document:
    """The container that declares the endpoint's port, else the first."""
    containers: list[Document] = endpoint.pod["spec"]["containers"]
    for container in containers:
        if any(port.get("containerPort") == endpoint.port for port in container.get("ports") or []):
            return container
    return containers[0]


def _node(cluster: Cluster, name: str | None) -> dict[str, Any]:
    with suppress(ClusterError):
        node = cluster.get(Ref("v1", "Node", "", name)) if name else None
        return (node or {}).get("status") or {}
    return {}


def _cold_start_s(pod: Document, container: str) -> float | None:
    status = pod.get("status") or {}
    states = [state for state in status.get("containerStatuses") or [] if state["name"] == container]
    ready = [
        condition
        for condition in status.get("conditions") or []
        if condition["type"] == "Ready" and condition["status"] == "True"
    ]
    if not states or not ready or states[0].get("restartCount"):
        return None
    begun, ended = states[0].get("state", {}).get("running", {}).get("startedAt"), ready[0].get("lastTransitionTime")
    if not begun or not ended:
        return None
    return max(0.0, (datetime.fromisoformat(ended) - datetime.fromisoformat(begun)).total_seconds())
