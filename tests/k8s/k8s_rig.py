"""A fake cluster with a real server behind its pods, and a small release to deploy to it."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

from fake_apiserver import FakeCluster
from json_server import answering

from marina.config.progress import Progress
from marina.k8s.cluster import connect
from marina.k8s.rollout import (
    Placement,
    RolloutOptions,
    RolloutRecord,
    ServiceStatus,
    delete,
    deploy,
    read_status,
    rollback,
)
from marina.k8s.rollout.history import State
from marina.k8s.rollout.inference import CanaryRequest
from marina.k8s.rollout.preflight import Blocker
from marina.k8s.rollout.release import Release

SHA256 = "ab" * 32
SPACE, NAME = "sea", "shells"
REQUEST = CanaryRequest(NAME, b"a shell", "image/png", SHA256)
LABELS = {"app.kubernetes.io/instance": NAME}


def document(kind: str, name: str = NAME, **fields: Any) -> dict[str, Any]:
    versions = {
        "Deployment": "apps/v1",
        "HorizontalPodAutoscaler": "autoscaling/v2",
        "PodDisruptionBudget": "policy/v1",
        "PodMonitor": "monitoring.coreos.com/v1",
        "ScaledObject": "keda.sh/v1alpha1",
    }
    metadata = {"name": name, "namespace": SPACE, "labels": LABELS}
    return {"apiVersion": versions.get(kind, "v1"), "kind": kind, "metadata": metadata, **fields}


def deployment(image: str, replicas: int | None = None, **container: Any) -> dict[str, Any]:
    server = {
        "name": "server",
        "image": f"{image}@sha256:{'0' * 64}",
        "ports": [{"containerPort": 8080}],
        "resources": {"limits": {"cpu": "2000m", "memory": "2048Mi"}},
        **container,
    }
    template = {"metadata": {"labels": LABELS}, "spec": {"containers": [server]}}
    spec = {"selector": {"matchLabels": LABELS}, "template": template}
    return document("Deployment", spec=spec | ({} if replicas is None else {"replicas": replicas}))


def autoscaler(metric: str | None = None) -> dict[str, Any]:
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": NAME}
    cpu = {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}
    rate = {"metric": {"name": metric}, "target": {"type": "AverageValue", "averageValue": "41"}}
    metrics = [cpu, *([{"type": "Pods", "pods": rate}] if metric else [])]
    spec = {"scaleTargetRef": target, "minReplicas": 2, "maxReplicas": 9, "metrics": metrics}
    return document("HorizontalPodAutoscaler", spec=spec)


def documents(image: str = "good:1", *more: dict[str, Any], replicas: int | None = None) -> tuple[dict[str, Any], ...]:
    """A Namespace, a ConfigMap, a Service and a Deployment, and more if given."""
    service = document("Service", spec={"selector": LABELS, "ports": [{"name": "http", "port": 8080}]})
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}}
    return space, document("ConfigMap", data={"a": "1"}), service, deployment(image, replicas), *more


@dataclass
class Pod:
    """The server behind all pods: the requests it got, and its answers."""

    port: int = 0
    asked: list[tuple[str, bytes, str]] = field(default_factory=list)
    status: int = 200
    sha256: str = SHA256
    before_answer: Callable[[], None] | None = None
    """Called before a prediction is answered."""


@dataclass
class Rig:
    fake: FakeCluster
    pod: Pod
    folder: Path
    said: StringIO = field(default_factory=StringIO)

    @property
    def placement(self) -> Placement:
        return Placement(connect(None, self.fake.kubeconfig), NAME, SPACE, "spec.yaml")

    @property
    def progress(self) -> Progress:
        return Progress(stream=self.said)

    @property
    def record_file(self) -> Path:
        return self.folder / "rollout.json"

    def deploy(
        self,
        *wanted: dict[str, Any],
        blockers: tuple[Blocker, ...] = (),
        request: CanaryRequest | None = REQUEST,
        **options: Any,
    ) -> RolloutRecord:
        release = Release(wanted, request, {"image": "good:1", "package": SHA256}, blockers)
        return deploy(self.placement, release, RolloutOptions(**options), self.progress, self.record_file)

    def rollback(self, to: int | None = None, **options: Any) -> RolloutRecord:
        return rollback(self.placement, RolloutOptions(**options), self.progress, self.record_file, to=to)

    def delete(self) -> RolloutRecord:
        return delete(self.placement, self.progress, self.record_file)

    def status(self) -> ServiceStatus:
        return read_status(self.placement, self.folder)

    @property
    def state(self) -> State:
        document = self.fake.get("ConfigMap", f"marina.{NAME}", SPACE)
        assert document
        return State.parse(document["data"]["state.json"], "")

    @property
    def image(self) -> str:
        document = self.fake.get("Deployment", NAME, SPACE)
        assert document
        return str(document["spec"]["template"]["spec"]["containers"][0]["image"]).partition("@")[0]

    @property
    def record(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads((self.folder / "rollout.json").read_text(encoding="utf-8"))
        return data


def put_prometheus(fake: FakeCluster) -> None:
    """A Prometheus that selects by label."""
    fake.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "monitoring"}})
    metadata, group = {"name": "k8s", "namespace": "monitoring"}, "monitoring.coreos.com/v1"
    selector = {"podMonitorSelector": {"matchLabels": {"release": "stack"}}}
    fake.put({"apiVersion": group, "kind": "Prometheus", "metadata": metadata, "spec": selector})


@contextmanager
def rig(folder: Path, **cluster: Any) -> Iterator[Rig]:
    with _serving() as pod, FakeCluster(folder, **cluster) as fake:
        fake.backends = {8080: pod.port, 8090: pod.port}
        yield Rig(fake, pod, folder)


@contextmanager
def _serving() -> Iterator[Pod]:
    pod = Pod()

    def post(path: str, body: bytes, content_type: str) -> tuple[int, dict[str, Any]]:
        pod.asked.append((path, body, content_type))
        if pod.before_answer:
            pod.before_answer()
        return pod.status, {"top_labels": ["whelk"]} if pod.status == 200 else {"error": "no worker"}

    with answering(lambda _: {"sha256": pod.sha256}, post) as pod.port:
        yield pod
