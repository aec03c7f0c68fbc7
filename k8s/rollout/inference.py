"""Sends the spec's sample to a pod that was just rolled out, for one real inference, and reads the pods' pages.

Both go through a port-forward, which ends inside the pod's own network, where no NetworkPolicy keeps it out."""

import http.client
import json
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kubernetes import client
from kubernetes.stream import portforward

from marina.config.answers import StatusAndBody, as_recorded, settled_body
from marina.config.errors import ClusterError
from marina.config.mar import open_mar
from marina.config.record import Package
from marina.config.render import Ports
from marina.config.request_headers import UNCACHED
from marina.k8s.cluster import Cluster

# By this id, `--accept` allows a pod another answer than its package recorded.
OTHER_ANSWER = "other-answer"
_LONGEST = 300
_SHA = 12
# How long a sample that does not reach a pod is sent again: the API server, or what is between, may be busy.
_SETTLED_S = 15.0
_PAUSE_S = 1.0
_PAGE_TIMEOUT_S, _ASKED_S = 10.0, 60.0


@dataclass(frozen=True)
class CanaryRequest:
    """The request that proves that a revision serves."""

    model: str
    body: bytes
    content_type: str
    sha256: str | None
    """The package that must answer; None: any."""
    answer: bytes | None = None
    """What the package recorded as its answer; None: any."""


@dataclass(frozen=True)
class Canary:
    """The result of that request."""

    ok: bool
    pod: str
    status: int
    seconds: float
    answer: str
    """The beginning of the answer, or what went wrong."""
    package: str = ""
    """The sha256 of the package that the pod reports; empty if its page could not be read."""

    def to_data(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        package = f", package {self.package[:_SHA]}…" if self.package else ""
        return f"{self.status} in {1000 * self.seconds:.0f} ms from {self.pod}{package}: {self.answer}"


class _Unreached(ClusterError):
    """No answer came from the pod."""

    def __init__(self, pod: str, err: Exception) -> None:
        # The client library quotes the whole Status with which an API server refused.
        why = str(getattr(err, "reason", None) or err or type(err).__name__)
        told = re.search(r'"message": ?("(?:[^"\\]|\\.)*")', why)
        super().__init__(f"port-forward to {pod}: {json.loads(told[1]) if told else why}")
        self.forbidden = getattr(err.__context__, "status_code", 0) == 403


def packaged_sample(mar: Path, package: Package) -> CanaryRequest:
    """The request with the sample in a MAR."""
    sample = package.record.sample
    with open_mar(mar) as archive:
        body, answer = archive.read(sample.file), archive.read(sample.answer) if sample.answer else None
    # Of a language model only the likeliest text can be recorded.
    body = settled_body(body) if package.record.text and answer else body
    return CanaryRequest(package.record.url_name, body, sample.content_type, package.sha256, answer)


def infer(cluster: Cluster, namespace: str, pod: str, sample: CanaryRequest, *, timeout_s: float) -> Canary:
    """Sends the sample until it reaches the pod, and reads which package it serves."""
    until = time.monotonic() + _SETTLED_S
    while True:
        begun = time.perf_counter()
        try:
            with _forwarded(cluster, namespace, pod, Ports().inference, timeout_s) as connection:
                answer, body = _post(connection, sample)
            break
        except _Unreached as err:
            if err.forbidden or time.monotonic() > until:
                return Canary(False, pod, 0, 0.0, err.message)
        time.sleep(_PAUSE_S)
    seconds, served = round(time.perf_counter() - begun, 4), served_package(cluster, namespace, pod)
    shown = _shown(body)
    # 204 says that the answer is empty.
    ok = 200 <= answer.status < 300 and (bool(body.strip()) or answer.status == 204)
    if ok and served and sample.sha256 and served != sample.sha256:
        ok, shown = False, f"answered by package {served[:_SHA]}…, not by {sample.sha256[:_SHA]}…"
    elif ok and sample.answer is not None and not as_recorded(sample.answer, body):
        ok, shown = False, f"answered with {shown}, but its package recorded {_shown(sample.answer)}"
        shown += f": `marina deploy --accept {OTHER_ANSWER}` takes it"
    return Canary(ok, pod, answer.status, seconds, shown, served)


def ask_each(
    cluster: Cluster, namespace: str, pod: str, requests: Sequence[CanaryRequest], *, within_s: float
) -> list[StatusAndBody]:
    """What a pod answers to these requests, as many as it answers in this time. Raises ClusterError if it cannot be
    reached."""
    answers, until = list[StatusAndBody](), time.monotonic() + within_s
    while len(answers) < len(requests) and time.monotonic() < until:
        with _forwarded(cluster, namespace, pod, Ports().inference, _ASKED_S) as connection:
            for request in requests[len(answers) :]:
                answer, body = _post(connection, request)
                answers.append((answer.status, body))
                if answer.will_close or time.monotonic() > until:
                    break
    return answers


def _post(connection: http.client.HTTPConnection, request: CanaryRequest) -> tuple[http.client.HTTPResponse, bytes]:
    headers = UNCACHED | {"Content-Type": request.content_type}
    connection.request("POST", f"/predictions/{request.model}", body=request.body, headers=headers)
    answer = connection.getresponse()
    return answer, answer.read()


def _shown(body: bytes) -> str:
    """The beginning of an answer."""
    text = body.decode(errors="replace").strip()
    return (text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…") or "an empty answer"


def served_package(cluster: Cluster, namespace: str, pod: str) -> str:
    """The sha256 of the package that a pod's supervisor reports; empty if it cannot be read."""
    with suppress(ValueError, AttributeError):
        return str(json.loads(pod_page(cluster, namespace, pod, "package")).get("sha256", ""))
    return ""


def pod_page(cluster: Cluster, namespace: str, pod: str, page: str) -> bytes:
    """A page of a pod's supervisor; empty if it cannot be read."""
    with (
        suppress(_Unreached),
        _forwarded(cluster, namespace, pod, Ports().supervisor, _PAGE_TIMEOUT_S) as connection,
    ):
        connection.request("GET", f"/{page}")
        answer = connection.getresponse()
        body = answer.read()
        return body if answer.status == 200 else b""
    return b""


@contextmanager
def _forwarded(
    cluster: Cluster, namespace: str, pod: str, port: int, timeout_s: float
) -> Iterator[http.client.HTTPConnection]:
    """A connection to a port inside a pod. Raises _Unreached if it breaks, or cannot be made."""
    try:
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
    except (client.ApiException, http.client.HTTPException, OSError) as err:
        raise _Unreached(pod, err) from err
