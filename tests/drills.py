"""A deployed service whose pods are real servers, behind a Service, to be broken by `marina drill`."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fake_apiserver import FakeCluster
from fake_kubelet import Kubelet, RealServer, Server, Service
from tiny import make_tiny

import marina

SPACE, NAME = "marina", "tiny"
LABELS = {"app.kubernetes.io/instance": NAME}
# How long the cluster needs to learn that a pod is no endpoint any more: the proxies of nodes are late.
LATE_S = 1.0


@dataclass
class Deployed:
    """A service of `NAME` in the namespace `SPACE`, and the files of its release in `folder`."""

    fake: FakeCluster
    kubelet: Kubelet
    service: Service
    folder: Path

    def ready(self) -> int:
        return len(self.kubelet.ports())

    def drill(self, kind: str, *more: str) -> int:
        """The exit code of the verb."""
        place = ["--url", self.service.url, "--kubeconfig", str(self.fake.kubeconfig), "--out", str(self.folder)]
        return marina.main(["drill", str(self.folder / "spec.yaml"), kind, *place, *more])

    @property
    def record(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads((self.folder / NAME / "drill.json").read_text(encoding="utf-8"))
        return data

    def node(self, name: str) -> dict[str, Any]:
        found = self.fake.get("Node", name)
        assert found
        return found


@contextmanager
def deployed(
    folder: Path, *, replicas: int = 2, begin: Callable[[], Server] | None = None, **serving: object
) -> Iterator[Deployed]:
    """`serving` are fields of the spec's; without `begin`, each pod is a real server of a package."""
    folder.mkdir(parents=True, exist_ok=True)
    spec, mar = make_tiny(folder, name=NAME, p99_ms=5000, **serving)
    data = json.loads((folder / "spec.yaml").read_text()) | {"load": {"sample": "./sample.json"}}
    (folder / "sample.json").write_text("{}")
    (folder / "spec.yaml").write_text(json.dumps(data))
    with FakeCluster(folder) as fake:
        fake.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}})
        begin = begin or (lambda: RealServer(spec, mar, folder))
        with Kubelet(fake, begin) as kubelet, Service(kubelet.ports, late_s=LATE_S) as service:
            put(
                fake, "Deployment", spec={"replicas": replicas, "selector": {"matchLabels": LABELS}, "template": _pod()}
            )
            put(fake, "PodDisruptionBudget", spec={"maxUnavailable": 1, "selector": {"matchLabels": LABELS}})
            yield Deployed(fake, kubelet, service, folder)


def put(fake: FakeCluster, kind: str, **fields: Any) -> None:
    versions = {"Deployment": "apps/v1", "PodDisruptionBudget": "policy/v1"}
    metadata = {"name": NAME, "namespace": SPACE, "labels": LABELS}
    fake.put({"apiVersion": versions[kind], "kind": kind, "metadata": metadata, **fields})


def _pod() -> dict[str, Any]:
    server = {"name": "server", "image": "good:1", "ports": [{"containerPort": 8080}]}
    return {"metadata": {"labels": LABELS}, "spec": {"containers": [server]}}
