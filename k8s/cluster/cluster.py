"""The requests to one API server, on documents: get, list, watch, apply, create, replace, delete, logs."""

import atexit
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote

import urllib3
from kubernetes import client, dynamic
from kubernetes.dynamic.exceptions import DynamicApiError, ResourceNotFoundError
from kubernetes.dynamic.resource import Resource

from marina.config.errors import ClusterError
from marina.k8s.cluster.api_errors import SHOWN, ApiError, api_error
from marina.k8s.cluster.reference import MANAGER, Document, Ref
from marina.k8s.cluster.transport import CONNECT_S, READ_S, Transport, translated

# This part of the client library has no types.
_DYNAMIC: Any = dynamic.DynamicClient
_DISOWN_TRIES = 5


@dataclass(frozen=True)
class Applied:
    """What the server stored, or would store in a dry run, with its warnings."""

    document: Document
    warnings: tuple[str, ...] = ()


class Cluster:
    """One API server. Every method but `watch` and `raw` retries transient errors."""

    def __init__(self, transport: Transport) -> None:
        self.context = transport.context
        self.server = transport.server
        self._transport = transport
        self._client: Any = None

    @property
    def settings(self) -> client.Configuration:
        """Address and credentials, for clients of other protocols."""
        return self._transport.settings

    def version(self) -> dict[str, str]:
        """The server's answer at `/version`."""
        return self.request("GET", "/version")

    def resource(self, api_version: str, kind: str) -> Resource | None:
        """How the cluster serves a kind; None if it does not."""
        try:
            with _about(f"{kind} of {api_version}"):
                served: Resource = self._transport.with_retries(
                    lambda: self._dynamic.resources.get(api_version=api_version, kind=kind)
                )
            return served
        except ResourceNotFoundError:
            return None

    def groups(self) -> set[str]:
        """The API groups of the cluster, such as `apps`."""
        return {group["name"] for group in self.request("GET", "/apis")["groups"]}

    def get(self, ref: Ref) -> Document | None:
        """An object; None if it does not exist."""
        if (resource := self.resource(ref.api_version, ref.kind)) is None:
            return None
        try:
            return self._send(ref, lambda: self._dynamic.get(resource, **_place(ref), **_plain())).document
        except ApiError as err:
            if err.status == 404:
                return None
            raise

    def list(self, api_version: str, kind: str, namespace: str, *, labels: str = "", fields: str = "") -> Document:
        """The list of the selected objects in a namespace (empty: in all), with its resource version."""
        resource = self._served(api_version, kind)
        selected = {"label_selector": labels or None, "field_selector": fields or None}
        where = {"namespace": namespace or None}
        send = partial(self._dynamic.get, resource, **where, **selected, **_plain())
        return self._send(f"list of {kind}", send).document

    def watch(
        self, api_version: str, kind: str, namespace: str, version: str, *, labels: str, fields: str, seconds: int
    ) -> urllib3.BaseHTTPResponse:
        """A stream of the changes after `version`, one per line. Not retried, because the version may have expired."""
        resource = self._served(api_version, kind)
        query: dict[str, Any] = {"label_selector": labels or None, "field_selector": fields or None}
        query["resource_version"] = version
        query |= {"watch": "true", "allow_watch_bookmarks": "true", "timeout_seconds": seconds}
        plain = _plain() | {"_request_timeout": (CONNECT_S, seconds + CONNECT_S)}
        try:
            stream: urllib3.BaseHTTPResponse = self._dynamic.get(resource, namespace=namespace, **query, **plain)
            return stream
        except DynamicApiError as err:
            with _about(f"watch of {kind}"):
                raise translated(err) from err
        except urllib3.exceptions.HTTPError as err:
            raise self._transport.unreachable(err) from err

    def apply(
        self, document: Document, *, manager: str = MANAGER, force: bool = False, dry_run: bool = False
    ) -> Applied:
        """Server-side apply: the manager owns the fields in the document, fields it no longer names are removed, and
        fields that others own are a conflict, unless `force` takes them over."""
        ref = Ref.of(document)
        resource = self._served(ref.api_version, ref.kind)
        options = {"field_manager": manager, "force_conflicts": "true" if force else None}
        options |= {"dry_run": "All"} if dry_run else {}

        def send() -> Any:
            # Without `Strict`, the server silently drops fields that it does not know.
            query = [("fieldValidation", "Strict")]
            return self._dynamic.server_side_apply(
                resource, document, namespace=ref.namespace or None, query_params=query, **options, **_plain()
            )

        return self._send(ref, send, races=True)

    def disown(self, ref: Ref, manager: str) -> None:
        """Makes the server forget that a manager applied an object; the fields stay as they are. If the object is
        written all the time, this may not succeed; then a later call has another chance."""
        resource = self._served(ref.api_version, ref.kind)
        for _ in range(_DISOWN_TRIES):
            document = self.get(ref)
            entries = (document or {}).get("metadata", {}).get("managedFields") or []
            left = [entry for entry in entries if (entry["manager"], entry["operation"]) != (manager, "Apply")]
            if document is None or len(left) == len(entries):
                return
            # With the version, the server refuses this if somebody else wrote the object, and its owners, meanwhile.
            metadata = {"resourceVersion": document["metadata"]["resourceVersion"], "managedFields": left}
            options = _place(ref) | {"content_type": "application/merge-patch+json"} | _plain()
            try:
                self._send(ref, partial(self._dynamic.patch, resource, body={"metadata": metadata}, **options))
                return
            except ApiError as err:
                if not err.lost_race:
                    raise

    def create(self, document: Document) -> Document:
        """Creates an object. Raises ApiError 409 if it exists."""
        return self._write(document, self._dynamic.create)

    def replace(self, document: Document) -> Document:
        """Replaces an object in the version that was read. Raises ApiError 409 if it was changed meanwhile."""
        return self._write(document, self._dynamic.replace)

    def delete(self, ref: Ref, *, uid: str, dry_run: bool = False) -> bool:
        """Deletes the object with this uid, but not a newer one of the same name. False if it was already gone, or is
        being deleted."""
        resource = self._served(ref.api_version, ref.kind)
        body: Document = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        # A server reads no options from the query of a request with a body, so it would not notice a dry run there.
        body |= {"preconditions": {"uid": uid}} | ({"dryRun": ["All"]} if dry_run else {})
        try:
            self._send(ref, lambda: self._dynamic.delete(resource, body=body, **_place(ref), **_plain()))
        except ApiError as err:
            metadata = (self.get(ref) or {}).get("metadata", {}) if err.lost_race else {}
            # Also a webhook may answer 409, and then the object stays.
            if err.status == 404 or (err.lost_race and (metadata.get("uid") != uid or "deletionTimestamp" in metadata)):
                return False
            raise
        return True

    def request(self, method: str, path: str, body: Document | None = None) -> Document:
        """Sends a request with a JSON body to a path, and returns the JSON answer."""
        sent = None if body is None else json.dumps(body).encode()

        def send() -> Any:
            response = self.raw(method, path, sent, content_type="application/json")
            if not 200 <= response.status < 300:
                raise api_error(response.status, response.reason or "", response.data, response.headers)
            return response

        return self._send(f"{method} {path}", send).document

    def logs(self, namespace: str, pod: str, container: str, *, previous: bool, lines: int) -> str:
        """The last lines of a container's output; empty if it cannot be read."""
        path = f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(pod)}/log"
        query = f"container={quote(container)}&tailLines={lines}" + ("&previous=true" if previous else "")

        def send() -> Any:
            response = self.raw("GET", f"{path}?{query}")
            if response.status != 200:
                raise api_error(response.status, response.reason or "", response.data, response.headers)
            return response

        try:
            return str(self._transport.with_retries(send).data.decode(errors="replace"))
        except ClusterError:
            return ""

    def raw(
        self, method: str, path: str, body: bytes | None = None, *, content_type: str = "", timeout_s: float = READ_S
    ) -> urllib3.BaseHTTPResponse:
        """One request, tried once, with its answer as it is: for requests that the API server passes on to pods."""
        return self._transport.request(method, path, body, content_type=content_type, timeout_s=timeout_s)

    @property
    def _dynamic(self) -> Any:
        if self._client is None:
            # The client caches discovery in a file. Runs do not share it, or they would miss newly installed kinds.
            folder = tempfile.mkdtemp(prefix="marina-")
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            file = f"{folder}/discovery.json"
            # The client does not check what it is answered, so this first request does.
            self.version()
            self._client = self._transport.with_retries(lambda: _DYNAMIC(self._transport.api, cache_file=file))
        return self._client

    def _served(self, api_version: str, kind: str) -> Resource:
        if (resource := self.resource(api_version, kind)) is None:
            raise ClusterError(f"the cluster does not know the kind `{kind}` of `{api_version}`")
        return resource

    def _write(self, document: Document, how: Callable[..., Any]) -> Document:
        ref = Ref.of(document)
        resource = self._served(ref.api_version, ref.kind)
        plain = _plain() | {"field_manager": MANAGER}
        return self._send(ref, lambda: how(resource, document, namespace=ref.namespace or None, **plain)).document

    def _send(self, about: Ref | str, send: Callable[[], Any], *, races: bool = False) -> Applied:
        with _about(about):
            response = self._transport.with_retries(send, races=races)
        warnings = tuple(map(_warning, response.headers.getlist("Warning")))
        try:
            document = json.loads(response.data)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            start = response.data[:SHOWN].decode(errors="replace")
            text = f"{self.server} (context `{self.context}`) does not answer as an API server does: `{start}`"
            raise ClusterError(text, hint="check `server` of the context; does a proxy ask for a login?")
        return Applied(document, warnings)


@contextmanager
def _about(subject: Ref | str) -> Iterator[None]:
    """An error of the server, such as `etcdserver: request timed out`, need not name what was asked."""
    try:
        yield
    except ClusterError as err:
        # That the server is out of reach is no error of one address, but an object may have been written all the same.
        if isinstance(err, ApiError) or isinstance(subject, Ref):
            err.message = f"{subject}: {err.message}"
        raise


def _plain() -> dict[str, Any]:
    return {"serialize": False, "_request_timeout": (CONNECT_S, READ_S)}


def _place(ref: Ref) -> dict[str, Any]:
    return {"name": ref.name, "namespace": ref.namespace or None}


def _warning(header: str) -> str:
    """The text in a `Warning: 299 - "…"` header."""
    return header.partition('"')[2].rpartition('"')[0].replace('\\"', '"') or header
