"""One cluster: where it is, and requests to it that are tried again as long as that can help."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import urllib3
from kubernetes import client, dynamic
from kubernetes import config as kubeconfigs
from kubernetes.config.config_exception import ConfigException
from kubernetes.dynamic.exceptions import DynamicApiError, ResourceNotFoundError
from kubernetes.dynamic.resource import Resource

from config.errors import ClusterError, InputError, listed
from k8s.rollout.api_errors import ApiError, api_error, may_come_back, unreachable

MANAGER = "marina"
# These parts of the client have no types.
_CONFIG: Any = kubeconfigs
_DYNAMIC: Any = dynamic.DynamicClient
Document = dict[str, Any]

_TRIES = 5
_LONGEST_PAUSE_S = 10.0
_CONNECT_S, _READ_S = 10.0, 60.0


@dataclass(frozen=True, order=True)
class Ref:
    """What names one object in a cluster."""

    api_version: str
    kind: str
    namespace: str
    """Empty for what is in no namespace."""
    name: str

    @classmethod
    def of(cls, document: Document) -> Ref:
        """The reference to a document's object."""
        metadata = document["metadata"]
        return cls(document["apiVersion"], document["kind"], metadata.get("namespace") or "", metadata["name"])

    @property
    def group(self) -> str:
        return self.api_version.partition("/")[0] if "/" in self.api_version else ""

    def same_object(self, other: Ref) -> bool:
        """Whether both name one object, in whatever version of its group."""
        return (self.group, self.kind, self.namespace, self.name) == (
            other.group, other.kind, other.namespace, other.name,
        )  # fmt: skip

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True)
class Answer:
    """One answer that was a success: the object, and the warnings that came with it."""

    document: Document
    warnings: tuple[str, ...] = ()


def connect(context: str | None = None, kubeconfig: Path | None = None) -> Cluster:
    """The cluster of a kubeconfig's context; inside a pod without a kubeconfig, the pod's own cluster."""
    settings = client.Configuration()
    try:
        contexts, active = _CONFIG.list_kube_config_contexts(str(kubeconfig) if kubeconfig else None)
    except ConfigException as err:
        return _from_inside(settings, context, kubeconfig, err)
    names = [entry["name"] for entry in contexts]
    if context is not None and context not in names:
        raise InputError(f"`--context`: got `{context}`, allowed: {listed(names)}")
    try:
        _CONFIG.load_kube_config(
            str(kubeconfig) if kubeconfig else None, context, client_configuration=settings, persist_config=False
        )
    except ConfigException as err:
        raise InputError(f"the kubeconfig cannot be used: {err}", hint="kubectl config view") from err
    return Cluster(settings, context or active["name"])


def _from_inside(settings: Any, context: str | None, kubeconfig: Path | None, reason: Exception) -> Cluster:
    if context is None and kubeconfig is None:
        try:
            _CONFIG.load_incluster_config(client_configuration=settings)
            return Cluster(settings, "in-cluster")
        except ConfigException:
            pass
    raise InputError(
        f"no cluster to talk to: {str(reason).rstrip('.')}",
        hint="name a kubeconfig with `--kubeconfig FILE` or $KUBECONFIG",
    ) from reason


class Cluster:
    """Requests to one API server. Each waits and tries again what passes: 429, 5xx, a dropped connection."""

    def __init__(self, settings: client.Configuration, context: str, *, pause: Callable[[float], None] = time.sleep):
        # urllib3 would repeat some requests on its own, and hide what the server answered.
        settings.retries = False
        self.context = context
        self.server = str(settings.host)
        self.api = client.ApiClient(settings)
        self.settings = settings
        self._pause = pause
        self._lazy: Any = None

    @property
    def _dynamic(self) -> Any:
        if self._lazy is None:
            # Discovery is cached in a file; one shared by all runs would not see a resource installed meanwhile.
            folder = tempfile.mkdtemp(prefix="marina-")
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            self._lazy = self._repeat(lambda: _DYNAMIC(self.api, cache_file=f"{folder}/discovery.json"))
        return self._lazy

    def version(self) -> dict[str, str]:
        """What the server says of itself at `/version`."""
        found: dict[str, str] = self.request("GET", "/version").document
        return found

    def resource(self, api_version: str, kind: str) -> Resource | None:
        """How the cluster serves a kind; None where it does not."""
        try:
            found: Resource = self._repeat(lambda: self._dynamic.resources.get(api_version=api_version, kind=kind))
            return found
        except ResourceNotFoundError:
            return None

    def groups(self) -> set[str]:
        """The API groups of the cluster, such as `apps`."""
        return {group["name"] for group in self.request("GET", "/apis").document["groups"]}

    def get(self, ref: Ref) -> Document | None:
        """An object; None when it is not there."""
        if (resource := self.resource(ref.api_version, ref.kind)) is None:
            return None
        try:
            return self._ask(lambda: self._dynamic.get(resource, **_place(ref), **_plain())).document
        except ApiError as err:
            if err.status == 404:
                return None
            raise

    def list(self, api_version: str, kind: str, namespace: str, *, labels: str = "", fields: str = "") -> Document:
        """The list of some objects of one namespace, with the version it is of."""
        resource = self._served(api_version, kind)
        chosen = {"label_selector": labels or None, "field_selector": fields or None}
        return self._ask(lambda: self._dynamic.get(resource, namespace=namespace, **chosen, **_plain())).document

    def watch(
        self, api_version: str, kind: str, namespace: str, version: str, *, labels: str, fields: str, seconds: int
    ) -> urllib3.BaseHTTPResponse:
        """The stream of changes after `version`, a line each; not tried again, because the version may be gone."""
        resource = self._served(api_version, kind)
        asked: dict[str, Any] = {"label_selector": labels or None, "field_selector": fields or None}
        asked["resource_version"] = version
        asked |= {"watch": "true", "allow_watch_bookmarks": "true", "timeout_seconds": seconds}
        plain = _plain() | {"_request_timeout": (_CONNECT_S, seconds + _READ_S)}
        try:
            stream: urllib3.BaseHTTPResponse = self._dynamic.get(resource, namespace=namespace, **asked, **plain)
            return stream
        except DynamicApiError as err:
            raise _translated(err) from err

    def apply(
        self, document: Document, *, manager: str = MANAGER, force: bool = False, dry_run: bool = False
    ) -> Answer:
        """Server-side apply: our fields become ours, what we no longer name goes, what others own is a conflict."""
        ref = Ref.of(document)
        resource = self._served(ref.api_version, ref.kind)
        options = {"field_manager": manager, "force_conflicts": "true" if force else None}
        options |= {"dry_run": "All"} if dry_run else {}

        def send() -> Any:
            # Without `Strict`, a field that the cluster's resource does not know would be dropped in silence.
            query = [("fieldValidation", "Strict")]
            return self._dynamic.server_side_apply(
                resource, document, namespace=ref.namespace or None, query_params=query, **options, **_plain()
            )

        return self._ask(send, races=True)

    def create(self, document: Document) -> Document:
        """Makes an object that is not there; ApiError 409 when it is."""
        return self._write(document, self._dynamic.create)

    def replace(self, document: Document) -> Document:
        """Writes an object over the version it was read at; ApiError 409 when somebody else was faster."""
        return self._write(document, self._dynamic.replace)

    def delete(self, ref: Ref, *, uid: str) -> bool:
        """Deletes this very object, not one that took its name since; false when it is gone already."""
        resource = self._served(ref.api_version, ref.kind)
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"} | {
            "preconditions": {"uid": uid}
        }
        try:
            self._ask(lambda: self._dynamic.delete(resource, body=body, **_place(ref), **_plain()))
        except ApiError as err:
            if err.status == 404 or err.lost_race:
                return False
            raise
        return True

    def request(self, method: str, path: str, body: Document | None = None) -> Answer:
        """A request to a path, in JSON both ways."""
        return self._ask(lambda: self._dynamic_or_plain(method, path, body))

    def logs(self, namespace: str, pod: str, container: str, *, previous: bool, lines: int) -> str:
        """The end of a container's output; empty when there is none to be had."""
        path = f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(pod)}/log"
        query = f"container={quote(container)}&tailLines={lines}" + ("&previous=true" if previous else "")
        try:
            answer = self.raw("GET", f"{path}?{query}")
        except ClusterError:
            return ""
        return answer.data.decode(errors="replace") if answer.status == 200 else ""

    def raw(
        self, method: str, path: str, body: bytes | None = None, *, content_type: str = "", timeout_s: float = _READ_S
    ) -> urllib3.BaseHTTPResponse:
        """One request as it is, tried once: for what the API server passes on to others."""
        headers = {"Content-Type": content_type} if content_type else {}
        _, url, headers, _, _ = self.api.param_serialize(
            method, path, header_params=headers, auth_settings=["BearerToken"]
        )
        timeout = urllib3.Timeout(connect=_CONNECT_S, read=timeout_s)
        try:
            return self.api.rest_client.pool_manager.request(method, url, body=body, headers=headers, timeout=timeout)
        except urllib3.exceptions.HTTPError as err:
            raise self._unreachable(err) from err

    def _dynamic_or_plain(self, method: str, path: str, body: Document | None) -> Any:
        # `/version` must be asked before there is a dynamic client, which itself begins by asking for it.
        answer = self.raw(
            method, path, None if body is None else json.dumps(body).encode(), content_type="application/json"
        )
        if not 200 <= answer.status < 300:
            raise api_error(answer.status, answer.reason or "", answer.data, answer.headers)
        return answer

    def _served(self, api_version: str, kind: str) -> Resource:
        if (found := self.resource(api_version, kind)) is None:
            raise ClusterError(f"the cluster does not know the kind `{kind}` of `{api_version}`")
        return found

    def _write(self, document: Document, how: Callable[..., Any]) -> Document:
        ref = Ref.of(document)
        resource = self._served(ref.api_version, ref.kind)
        plain = _plain() | {"field_manager": MANAGER}
        return self._ask(lambda: how(resource, document, namespace=ref.namespace or None, **plain)).document

    def _ask(self, send: Callable[[], Any], *, races: bool = False) -> Answer:
        response = self._repeat(send, races=races)
        warnings = tuple(map(_warning, response.headers.getlist("Warning")))
        return Answer(json.loads(response.data), warnings)

    def _repeat(self, send: Callable[[], Any], *, races: bool = False) -> Any:
        """The answer, after as many tries as it takes and can help."""
        for attempt in range(1, _TRIES + 1):
            try:
                return send()
            except DynamicApiError as err:
                error: ClusterError = _translated(err)
            except ClusterError as err:
                error = err
            except urllib3.exceptions.HTTPError as err:
                error = self._unreachable(err)
                error.__cause__ = err
            again = (
                error.passing or (races and error.lost_race) if isinstance(error, ApiError) else may_come_back(error)
            )
            if attempt == _TRIES or not again:
                raise error
            asked = error.retry_after_s if isinstance(error, ApiError) else None
            self._pause(min(_LONGEST_PAUSE_S, asked if asked is not None else 0.1 * 2**attempt))
        raise AssertionError("unreachable")

    def _unreachable(self, err: Exception) -> ClusterError:
        text, hint = unreachable(err)
        return ClusterError(f"{self.server} (context `{self.context}`): {text}", hint=hint)


def _plain() -> dict[str, Any]:
    return {"serialize": False, "_request_timeout": (_CONNECT_S, _READ_S)}


def _place(ref: Ref) -> dict[str, Any]:
    return {"name": ref.name, "namespace": ref.namespace or None}


def _translated(err: DynamicApiError) -> ApiError:
    body = err.body.encode() if isinstance(err.body, str) else (err.body or b"")
    return api_error(err.status or 0, err.reason or "", body, err.headers or {})


def _warning(header: str) -> str:
    """The words of a `Warning: 299 - "…"` header."""
    return header.partition('"')[2].rpartition('"')[0].replace('\\"', '"') or header


def lines_of(response: urllib3.BaseHTTPResponse) -> Iterator[Mapping[str, Any]]:
    """The events of a watch as they come; ends when the server ends it."""
    rest = b""
    for piece in response.stream(amt=None, decode_content=False):
        *whole, rest = (rest + piece).split(b"\n")
        yield from (json.loads(line) for line in whole if line.strip())
