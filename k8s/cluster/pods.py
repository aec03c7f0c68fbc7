"""The ready pods behind a Service, and what the cluster knows about one of them."""

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from marina.config.errors import ClusterError
from marina.config.quantity import quantity
from marina.k8s.cluster.client import Cluster, Document, Ref


@dataclass(frozen=True)
class Endpoint:
    """One ready pod."""

    name: str
    address: str
    port: int
    pod: Document

    @property
    def url(self) -> str:
        """Its address for other pods in the cluster."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"http://{host}:{self.port}"


@dataclass(frozen=True)
class Endpoints:
    """A Service's selector, port and ready pods, sorted by name."""

    selector: dict[str, str]
    port: int
    """The Service's port, not the pods'."""
    ready: tuple[Endpoint, ...]


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


def is_ready(pod: Document) -> bool:
    """Whether the kubelet reports the pod as ready."""
    return _ready_condition(pod) is not None


def label_text(labels: dict[str, str]) -> str:
    """Labels as a selector of the API."""
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def read_endpoints(cluster: Cluster, namespace: str, service: str) -> Endpoints:
    """The endpoints of a Service's first port. Raises ClusterError if there is no such Service, or no ready pod."""
    document = cluster.get(Ref("v1", "Service", namespace, service))
    if document is None:
        text = f"there is no Service `{service}` in namespace `{namespace}`"
        raise ClusterError(text, hint="marina deploy SPEC, or `--service NAME` if it has another name")
    spec = document["spec"]
    selector: dict[str, str] = spec.get("selector") or {}
    if not selector:
        raise ClusterError(f"Service `{service}` has no selector, so its pods are unknown", hint="--url ADDRESS")
    port = spec["ports"][0]
    pods = cluster.list("v1", "Pod", namespace, labels=label_text(selector))
    ready = [
        Endpoint(pod["metadata"]["name"], pod["status"]["podIP"], _target(port, pod), pod)
        for pod in pods
        if is_ready(pod) and not pod["metadata"].get("deletionTimestamp") and pod["status"].get("podIP")
    ]
    if not ready:
        text = f"no pod of Service `{service}` is ready in namespace `{namespace}`"
        raise ClusterError(text, hint=f"kubectl -n {namespace} get pods -l {label_text(selector)}")
    return Endpoints(selector, port["port"], tuple(sorted(ready, key=lambda pod: pod.name)))


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


def _target(port: Document, pod: Document) -> int:
    """The container's port behind a Service's port, which may refer to it by name."""
    wanted = port.get("targetPort", port["port"])
    if isinstance(wanted, int):
        return wanted
    opened = [known for container in pod["spec"]["containers"] for known in container.get("ports") or []]
    return next((int(known["containerPort"]) for known in opened if known.get("name") == wanted), int(port["port"]))


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


def _ready_condition(pod: Document) -> Document | None:
    conditions: list[Document] = (pod.get("status") or {}).get("conditions") or []
    return next((known for known in conditions if (known["type"], known["status"]) == ("Ready", "True")), None)


def _cold_start_s(pod: Document, container: str) -> float | None:
    states = (pod.get("status") or {}).get("containerStatuses") or []
    state, ready = next((state for state in states if state["name"] == container), None), _ready_condition(pod)
    if state is None or ready is None or state.get("restartCount"):
        return None
    begun, ended = state.get("state", {}).get("running", {}).get("startedAt"), ready.get("lastTransitionTime")
    if not begun or not ended:
        return None
    return max(0.0, (datetime.fromisoformat(ended) - datetime.fromisoformat(begun)).total_seconds())
