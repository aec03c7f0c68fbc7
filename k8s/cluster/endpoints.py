"""Which pods are behind a Service and ready, and where each of them listens."""

from __future__ import annotations

from dataclasses import dataclass

from config.errors import ClusterError
from k8s.cluster.cluster import Cluster
from k8s.cluster.reference import Document, Ref


@dataclass(frozen=True)
class Endpoint:
    """One ready pod."""

    name: str
    address: str
    port: int
    pod: Document

    @property
    def url(self) -> str:
        """Where it listens, as other pods of the cluster see it."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"http://{host}:{self.port}"


@dataclass(frozen=True)
class Endpoints:
    """A Service with its ready pods, by name."""

    selector: dict[str, str]
    port: int
    """Of the Service."""
    ready: tuple[Endpoint, ...]


def is_ready(pod: Document) -> bool:
    """Whether its readiness holds, as the kubelet says."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def endpoints(cluster: Cluster, namespace: str, service: str) -> Endpoints:
    """Those of a Service's first port; ClusterError without such a Service, or without a pod that is ready."""
    document = cluster.get(Ref("v1", "Service", namespace, service))
    if document is None:
        text = f"there is no Service `{service}` in namespace `{namespace}`"
        raise ClusterError(text, hint="marina deploy SPEC, or `--service NAME` for one of another name")
    spec = document["spec"]
    selector: dict[str, str] = spec.get("selector") or {}
    if not selector:
        raise ClusterError(f"Service `{service}` selects no pods, so they are not known", hint="--url ADDRESS")
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
    """The container's port behind a Service's, which may be named after it."""
    wanted = port.get("targetPort", port["port"])
    if isinstance(wanted, int):
        return wanted
    for container in pod["spec"]["containers"]:
        for opened in container.get("ports") or []:
            if opened.get("name") == wanted:
                return int(opened["containerPort"])
    return int(port["port"])
