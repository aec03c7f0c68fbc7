"""The ready pods behind a Service, and the address of each."""

from dataclasses import dataclass

from marina.config.errors import ClusterError
from marina.k8s.cluster.cluster import Cluster
from marina.k8s.cluster.reference import Document, Ref


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


def is_ready(pod: Document) -> bool:
    """Whether the kubelet reports the pod as ready."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


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
    labels = ",".join(f"{key}={value}" for key, value in sorted(selector.items()))
    pods = cluster.list("v1", "Pod", namespace, labels=labels)["items"]
    ready = [
        Endpoint(pod["metadata"]["name"], pod["status"]["podIP"], _target(port, pod), pod)
        for pod in pods
        if is_ready(pod) and not pod["metadata"].get("deletionTimestamp") and pod["status"].get("podIP")
    ]
    if not ready:
        text = f"no pod of Service `{service}` is ready in namespace `{namespace}`"
        raise ClusterError(text, hint=f"kubectl -n {namespace} get pods -l {labels}")
    return Endpoints(selector, port["port"], tuple(sorted(ready, key=lambda pod: pod.name)))


def _target(port: Document, pod: Document) -> int:
    """The container's port behind a Service's port, which may refer to it by name."""
    wanted = port.get("targetPort", port["port"])
    if isinstance(wanted, int):
        return wanted
    for container in pod["spec"]["containers"]:
        for opened in container.get("ports") or []:
            if opened.get("name") == wanted:
                return int(opened["containerPort"])
    return int(port["port"])
