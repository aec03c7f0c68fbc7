"""Sends the spec's sample through the API server to the pods that were just rolled out, for one real inference.

It first goes through the Service, like the requests of clients. If the API server may not reach the pods (a
NetworkPolicy, a missing permission), it goes through a port-forward, which ends inside the pod's own network."""

import http.client
import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kubernetes import client
from kubernetes.stream import portforward

from marina.config.errors import ClusterError
from marina.config.mar import open_mar
from marina.config.record import Package
from marina.config.render import Ports
from marina.config.request_headers import UNCACHED
from marina.k8s.cluster import Cluster

_LONGEST = 300
_SHA = 12
# How long a sample that does not reach a pod is sent again: the API server may be busy, or learns of ready pods later
# than their Deployment.
_SETTLED_S = 15.0
_PAUSE_S = 1.0


@dataclass(frozen=True)
class CanaryRequest:
    """The request that proves that a revision serves."""

    model: str
    body: bytes
    content_type: str
    sha256: str | None
    """The package that must answer; None: any."""


@dataclass(frozen=True)
class Canary:
    """The result of that request."""

    ok: bool
    via: str
    """The way it took, such as `the Service`."""
    status: int
    seconds: float
    answer: str
    """The beginning of the answer, or what went wrong."""
    package: str
    """The sha256 of the package that the pod reports; empty if its page could not be read."""

    def to_data(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        package = f", package {self.package[:_SHA]}…" if self.package else ""
        return f"{self.status} in {1000 * self.seconds:.0f} ms through {self.via}{package}: {self.answer}"


@dataclass(frozen=True)
class _Reply:
    via: str
    status: int
    body: bytes
    seconds: float


@dataclass(frozen=True)
class _Blocked:
    why: str
    forbidden: bool = False
    """Then sending again does not help."""


def packaged_sample(mar: Path, package: Package) -> CanaryRequest:
    """The request with the sample in a MAR."""
    sample = package.record.sample
    with open_mar(mar) as archive:
        return CanaryRequest(package.record.name, archive.read(sample.file), sample.content_type, package.sha256)


def infer(
    cluster: Cluster, namespace: str, service: str, pods: list[str], sample: CanaryRequest, *, timeout_s: float
) -> Canary:
    """Sends the sample until it reaches a pod, and reads which package serves. `service` is `NAME:PORT`, `pods` are
    those of the new revision."""
    ports = Ports()
    path = f"/predictions/{sample.model}"
    base = f"/api/v1/namespaces/{namespace}"
    through = f"{base}/services/http:{service}/proxy{path}"
    until = time.monotonic() + _SETTLED_S
    while True:
        reply = _through_server(cluster, "POST", through, sample.body, sample.content_type, timeout_s)
        if isinstance(reply, _Blocked) and pods:
            first = reply
            reply = _forwarded(cluster, namespace, pods[0], ports.inference, "POST", path, sample, timeout_s)
            if isinstance(reply, _Blocked):
                reply = _Blocked(f"{first.why}; {reply.why}", first.forbidden and reply.forbidden)
        if isinstance(reply, _Reply) or reply.forbidden or time.monotonic() > until:
            break
        time.sleep(_PAUSE_S)
    if isinstance(reply, _Blocked):
        return Canary(False, "the API server", 0, 0.0, reply.why, "")
    served = served_package(cluster, namespace, pods, timeout_s)
    ok, answer = _judge(reply, sample, served)
    return Canary(ok, reply.via, reply.status, round(reply.seconds, 4), answer, served)


def _judge(reply: _Reply, sample: CanaryRequest, served: str) -> tuple[bool, str]:
    text = reply.body.decode(errors="replace").strip()
    shown = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    if reply.status != 200:
        return False, shown or "an empty answer"
    if not text:
        return False, "an empty answer"
    if served and sample.sha256 and served != sample.sha256:
        return False, f"answered by package {served[:_SHA]}…, not by {sample.sha256[:_SHA]}…"
    return True, shown


def _through_server(
    cluster: Cluster, method: str, path: str, body: bytes | None, content_type: str, timeout_s: float
) -> _Reply | _Blocked:
    """The pod's answer through the API server's proxy, or why there is none."""
    begun = time.perf_counter()
    try:
        answer = cluster.raw(method, path, body, content_type=content_type, timeout_s=timeout_s)
    except ClusterError as err:
        return _Blocked(err.message)
    seconds = time.perf_counter() - begun
    if answer.status != 200 and (message := _on_the_way(answer.status, answer.data)):
        return _Blocked(message, answer.status == 403)
    return _Reply("the Service", answer.status, answer.data, seconds)


def _forwarded(
    cluster: Cluster,
    namespace: str,
    pod: str,
    port: int,
    method: str,
    path: str,
    sample: CanaryRequest | None,
    timeout_s: float,
) -> _Reply | _Blocked:
    """The pod's answer through a port-forward, or why there is none."""
    begun = time.perf_counter()
    try:
        with _connection(cluster, namespace, pod, port, timeout_s) as connection:
            headers = UNCACHED | ({"Content-Type": sample.content_type} if sample else {})
            connection.request(method, path, body=sample.body if sample else None, headers=headers)
            answer = connection.getresponse()
            body = answer.read()
    except (client.ApiException, http.client.HTTPException, OSError) as err:
        why = getattr(err, "reason", None) or err or type(err).__name__
        forbidden = getattr(err.__context__, "status_code", 0) == 403
        return _Blocked(f"port-forward to {pod}: {_refusal(str(why))}", forbidden)
    return _Reply(f"a port-forward to {pod}", answer.status, body, time.perf_counter() - begun)


@contextmanager
def _connection(
    cluster: Cluster, namespace: str, pod: str, port: int, timeout_s: float
) -> Iterator[http.client.HTTPConnection]:
    # The port-forward replaces a method of its ApiClient while it runs, so it gets an ApiClient of its own.
    core = client.CoreV1Api(client.ApiClient(cluster.settings))
    forward = portforward(core.connect_get_namespaced_pod_portforward, pod, namespace, ports=str(port))
    connection = http.client.HTTPConnection(pod, port)
    connection.sock = forward.socket(port)
    connection.sock.settimeout(timeout_s)
    try:
        yield connection
    finally:
        connection.close()
        with suppress(OSError):
            forward.close()


def served_package(cluster: Cluster, namespace: str, pods: list[str], timeout_s: float) -> str:
    """The sha256 of the package that the first pod's supervisor reports; empty if it cannot be read."""
    page = pod_page(cluster, namespace, pods[0], "package", timeout_s) if pods else b""
    with suppress(ValueError, AttributeError):
        return str(json.loads(page).get("sha256", ""))
    return ""


def pod_page(cluster: Cluster, namespace: str, pod: str, page: str, timeout_s: float) -> bytes:
    """A page of a pod's supervisor; empty if it cannot be read."""
    port = Ports().supervisor
    path = f"/api/v1/namespaces/{namespace}/pods/http:{pod}:{port}/proxy/{page}"
    reply = _through_server(cluster, "GET", path, None, "", timeout_s)
    if isinstance(reply, _Blocked):
        reply = _forwarded(cluster, namespace, pod, port, "GET", f"/{page}", None, timeout_s)
    return reply.body if isinstance(reply, _Reply) and reply.status == 200 else b""


def _refusal(text: str) -> str:
    """The API server's message, if it answered a port-forward with a Status, which the client library quotes whole."""
    message = re.search(r'"message": ?("(?:[^"\\]|\\.)*")', text)
    return str(json.loads(message[1])) if message else text


def _on_the_way(status: int, data: bytes) -> str:
    """What somebody before the pod answered: the API server, with a Status or in plain text, or a proxy in front of it.
    Empty if the answer is JSON of another kind, as pods send it."""
    try:
        body = json.loads(data)
    except ValueError:
        return f"{status} {' '.join(data.decode(errors='replace').split())[:_LONGEST]}"
    if isinstance(body, dict) and body.get("kind") == "Status":
        return str(body.get("message") or body.get("reason") or "refused")
    return ""
