"""The verbs of one API server, on documents: get, list, watch, apply, create, replace, delete, logs."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote

import urllib3
from kubernetes import client, dynamic
from kubernetes.dynamic.exceptions import DynamicApiError, ResourceNotFoundError
from kubernetes.dynamic.resource import Resource

from config.errors import ClusterError
from k8s.cluster.api_errors import ApiError, api_error
from k8s.cluster.reference import MANAGER, Document, Ref
from k8s.cluster.transport import CONNECT_S, READ_S, Transport, translated

# This part of the client has no types.
_DYNAMIC: Any = dynamic.DynamicClient
_LOOKS = 5


@dataclass(frozen=True)
class Applied:
    """What a server stored, or would store, and the warnings that came with it."""

    document: Document
    warnings: tuple[str, ...] = ()


class Cluster:
    """One API server; every verb but `watch` and `raw` tries again what passes."""

    def __init__(self, transport: Transport) -> None:
        self.context = transport.context
        self.server = transport.server
        self._transport = transport
        self._client: Any = None

    @property
    def settings(self) -> client.Configuration:
        """Address and credentials, for what speaks another protocol."""
        return self._transport.settings

    def version(self) -> dict[str, str]:
        """What the server says of itself at `/version`."""
        return self.request("GET", "/version")

    def resource(self, api_version: str, kind: str) -> Resource | None:
        """How the cluster serves a kind; None where it does not."""
        try:
            served: Resource = self._transport.repeated(
                lambda: self._dynamic.resources.get(api_version=api_version, kind=kind)
            )
            return served
        except ResourceNotFoundError:
            return None

    def groups(self) -> set[str]:
        """The API groups of the cluster, such as `apps`."""
        return {group["name"] for group in self.request("GET", "/apis")["groups"]}

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
        """The list of some objects of one namespace, or of all with an empty one, with the version it is of."""
        resource = self._served(api_version, kind)
        selected = {"label_selector": labels or None, "field_selector": fields or None}
        where = {"namespace": namespace or None}
        return self._ask(lambda: self._dynamic.get(resource, **where, **selected, **_plain())).document

    def watch(
        self, api_version: str, kind: str, namespace: str, version: str, *, labels: str, fields: str, seconds: int
    ) -> urllib3.BaseHTTPResponse:
        """The stream of changes after `version`, a line each; not tried again, because the version may be gone."""
        resource = self._served(api_version, kind)
        query: dict[str, Any] = {"label_selector": labels or None, "field_selector": fields or None}
        query["resource_version"] = version
        query |= {"watch": "true", "allow_watch_bookmarks": "true", "timeout_seconds": seconds}
        plain = _plain() | {"_request_timeout": (CONNECT_S, seconds + READ_S)}
        try:
            stream: urllib3.BaseHTTPResponse = self._dynamic.get(resource, namespace=namespace, **query, **plain)
            return stream
        except DynamicApiError as err:
            raise translated(err) from err

    def apply(
        self, document: Document, *, manager: str = MANAGER, force: bool = False, dry_run: bool = False
    ) -> Applied:
        """Server-side apply: Marina owns the fields that it names, those that it no longer names are removed, and
        fields of other owners are a conflict."""
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

    def disown(self, ref: Ref, manager: str) -> None:
        """Forgets that a manager applied an object; its fields stay as they are. An object that is written all the time
        may keep the owner; then the next call has another chance."""
        resource = self._served(ref.api_version, ref.kind)
        for _ in range(_LOOKS):
            document = self.get(ref)
            entries = (document or {}).get("metadata", {}).get("managedFields") or []
            left = [entry for entry in entries if (entry["manager"], entry["operation"]) != (manager, "Apply")]
            if document is None or len(left) == len(entries):
                return
            # The version makes the server refuse this once somebody else wrote the object, and its owners, meanwhile.
            metadata = {"resourceVersion": document["metadata"]["resourceVersion"], "managedFields": left}
            options = _place(ref) | {"content_type": "application/merge-patch+json"} | _plain()
            try:
                self._ask(partial(self._dynamic.patch, resource, body={"metadata": metadata}, **options))
                return
            except ApiError as err:
                if not err.lost_race:
                    raise

    def create(self, document: Document) -> Document:
        """Makes an object that is not there; ApiError 409 when it is."""
        return self._write(document, self._dynamic.create)

    def replace(self, document: Document) -> Document:
        """Replaces an object in the version that was read; ApiError 409 when somebody else changed it meanwhile."""
        return self._write(document, self._dynamic.replace)

    def delete(self, ref: Ref, *, uid: str) -> bool:
        """Deletes this object, but not a newer one of the same name; false when it is already gone."""
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

    def request(self, method: str, path: str, body: Document | None = None) -> Document:
        """What a request to a path answers, in JSON both ways."""
        sent = None if body is None else json.dumps(body).encode()

        def send() -> Any:
            response = self.raw(method, path, sent, content_type="application/json")
            if not 200 <= response.status < 300:
                raise api_error(response.status, response.reason or "", response.data, response.headers)
            return response

        return self._ask(send).document

    def logs(self, namespace: str, pod: str, container: str, *, previous: bool, lines: int) -> str:
        """The end of a container's output; empty when it cannot be read."""
        path = f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(pod)}/log"
        query = f"container={quote(container)}&tailLines={lines}" + ("&previous=true" if previous else "")
        try:
            response = self.raw("GET", f"{path}?{query}")
        except ClusterError:
            return ""
        return response.data.decode(errors="replace") if response.status == 200 else ""

    def raw(
        self, method: str, path: str, body: bytes | None = None, *, content_type: str = "", timeout_s: float = READ_S
    ) -> urllib3.BaseHTTPResponse:
        """One request as it is, tried once: for what the API server passes on to others."""
        return self._transport.once(method, path, body, content_type=content_type, timeout_s=timeout_s)

    @property
    def _dynamic(self) -> Any:
        if self._client is None:
            # Discovery is cached in a file; one shared by all runs would not see a resource installed meanwhile.
            folder = tempfile.mkdtemp(prefix="marina-")
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            file = f"{folder}/discovery.json"
            self._client = self._transport.repeated(lambda: _DYNAMIC(self._transport.api, cache_file=file))
        return self._client

    def _served(self, api_version: str, kind: str) -> Resource:
        if (resource := self.resource(api_version, kind)) is None:
            raise ClusterError(f"the cluster does not know the kind `{kind}` of `{api_version}`")
        return resource

    def _write(self, document: Document, how: Callable[..., Any]) -> Document:
        ref = Ref.of(document)
        resource = self._served(ref.api_version, ref.kind)
        plain = _plain() | {"field_manager": MANAGER}
        return self._ask(lambda: how(resource, document, namespace=ref.namespace or None, **plain)).document

    def _ask(self, send: Callable[[], Any], *, races: bool = False) -> Applied:
        response = self._transport.repeated(send, races=races)
        warnings = tuple(map(_warning, response.headers.getlist("Warning")))
        return Applied(json.loads(response.data), warnings)


def _plain() -> dict[str, Any]:
    return {"serialize": False, "_request_timeout": (CONNECT_S, READ_S)}


def _place(ref: Ref) -> dict[str, Any]:
    return {"name": ref.name, "namespace": ref.namespace or None}


def _warning(header: str) -> str:
    """The words of a `Warning: 299 - "…"` header."""
    return header.partition('"')[2].rpartition('"')[0].replace('\\"', '"') or header
