"""The requests to one API server, on documents: get, list, apply, create, replace, delete, logs; and their retries."""

import json
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import urllib3
from kubernetes import client

from marina.config.errors import ClusterError
from marina.config.request_headers import UNCACHED
from marina.k8s.cluster.api_errors import SHOWN, ApiError, api_error, describe_unreachable, may_recover

MANAGER = "marina"
"""The field manager that owns the fields that Marina applies."""

Document = dict[str, Any]
"""An object in its JSON form."""

_TIMEOUT = urllib3.Timeout(connect=10.0, read=60.0)
_TRIES = 5
_LONGEST_PAUSE_S = 10.0
# How long a server that has answered before may be out of reach, such as while it restarts, and how often it is tried.
_AWAY_S, _AWAY_PAUSE_S = 60.0, 2.0


@dataclass(frozen=True, order=True)
class Ref:
    """A reference to one object in a cluster."""

    api_version: str
    kind: str
    namespace: str
    """Empty for objects that are in no namespace."""
    name: str

    @classmethod
    def of(cls, document: Document) -> "Ref":
        """The reference to the object in a document."""
        metadata = document["metadata"]
        return cls(document["apiVersion"], document["kind"], metadata.get("namespace") or "", metadata["name"])

    @property
    def group(self) -> str:
        return self.api_version.partition("/")[0] if "/" in self.api_version else ""

    def same_object(self, other: "Ref") -> bool:
        """Whether both refer to one object, whatever the API version in its group."""
        first, second = ((ref.group, ref.kind, ref.namespace, ref.name) for ref in (self, other))
        return first == second

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True)
class Applied:
    """What the server stored, or would store in a dry run, with its warnings."""

    document: Document
    warnings: tuple[str, ...] = ()


class Cluster:
    """One API server. Every request is tried again after transient errors: 429, 5xx, a dropped connection."""

    def __init__(self, settings: client.Configuration, context: str, *, pause: Callable[[float], None] = time.sleep):
        # Otherwise urllib3 would retry some requests by itself, and hide the server's answers.
        settings.retries = False
        if not settings.verify_ssl:
            # `connect` warns once; urllib3 would warn at every request.
            warnings.filterwarnings("ignore", category=urllib3.exceptions.InsecureRequestWarning)
        self.context = context
        self.server = str(settings.host)
        self.settings = settings
        self._api = client.ApiClient(settings)
        self._pause = pause
        self._has_answered = False
        self._kinds: dict[str, dict[str, Document]] = {}

    def version(self) -> dict[str, str]:
        """The server's answer at `/version`."""
        return self.request("GET", "/version")

    def groups(self) -> set[str]:
        """The API groups of the cluster, such as `apps`."""
        return {group["name"] for group in self.request("GET", "/apis")["groups"]}

    def plural(self, api_version: str, kind: str) -> str | None:
        """The name of a kind in addresses and permissions, such as `deployments`; None if the cluster does not know
        it."""
        if not self._kinds:
            # Any page of a proxy may be a 404; an API server answers this.
            self.version()
        if api_version not in self._kinds:
            path = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
            try:
                served = self._send(f"{kind} of {api_version}", "GET", path).document["resources"]
            except ApiError as err:
                if err.status != 404:
                    raise
                served = []
            self._kinds[api_version] = {entry["kind"]: entry for entry in served if "/" not in entry["name"]}
        entry = self._kinds[api_version].get(kind)
        return str(entry["name"]) if entry else None

    def get(self, ref: Ref) -> Document | None:
        """An object; None if it does not exist."""
        if self.plural(ref.api_version, ref.kind) is None:
            return None
        try:
            return self._send(ref, "GET", self._path(ref)).document
        except ApiError as err:
            if err.status == 404:
                return None
            raise

    def list(
        self, api_version: str, kind: str, namespace: str, *, labels: str = "", fields: str = ""
    ) -> list[Document]:
        """The selected objects in a namespace (empty: in all)."""
        query = {"labelSelector": labels, "fieldSelector": fields}
        listed = self._send(f"list of {kind}", "GET", self._path(Ref(api_version, kind, namespace, "")), query=query)
        items: list[Document] = listed.document["items"]
        return items

    def apply(
        self, document: Document, *, manager: str = MANAGER, force: bool = False, dry_run: bool = False
    ) -> Applied:
        """Server-side apply: the manager owns the fields in the document, fields it no longer names are removed, and
        fields that others own are a conflict, unless `force` takes them over."""
        ref = Ref.of(document)
        # Without `Strict`, the server silently drops fields that it does not know.
        query = {"fieldManager": manager, "fieldValidation": "Strict"}
        query |= {"force": "true" if force else "", "dryRun": "All" if dry_run else ""}
        kind = "application/apply-patch+yaml"
        return self._send(ref, "PATCH", self._path(ref), document, query=query, content_type=kind, races=True)

    def create(self, document: Document) -> Document:
        """Creates an object. Raises ApiError 409 if it exists."""
        ref = Ref.of(document)
        path = self._path(Ref(ref.api_version, ref.kind, ref.namespace, ""))
        return self._send(ref, "POST", path, document, query={"fieldManager": MANAGER}).document

    def replace(self, document: Document) -> Document:
        """Replaces an object whole; if the document names a version, raises ApiError 409 if it was changed since."""
        ref = Ref.of(document)
        return self._send(ref, "PUT", self._path(ref), document, query={"fieldManager": MANAGER}).document

    def delete(self, ref: Ref, *, uid: str, dry_run: bool = False) -> bool:
        """Deletes the object with this uid, but not a newer one of the same name. False if it was already gone, or is
        being deleted."""
        body: Document = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        # A server reads no options from the query of a request with a body, so it would not notice a dry run there.
        body |= {"preconditions": {"uid": uid}} | ({"dryRun": ["All"]} if dry_run else {})
        try:
            self._send(ref, "DELETE", self._path(ref), body)
        except ApiError as err:
            metadata = (self.get(ref) or {}).get("metadata", {}) if err.lost_race else {}
            # Also a webhook may answer 409, and then the object stays.
            if err.status == 404 or (err.lost_race and (metadata.get("uid") != uid or "deletionTimestamp" in metadata)):
                return False
            raise
        return True

    def request(self, method: str, path: str, body: Document | None = None) -> Document:
        """Sends a request with a JSON body to a path, and returns the JSON answer."""
        return self._send(f"{method} {path}", method, path, body).document

    def logs(self, namespace: str, pod: str, container: str, *, previous: bool = False, lines: int) -> str:
        """The last lines of a container's output; empty if it cannot be read."""
        query = {"container": container, "tailLines": str(lines), "previous": "true" if previous else ""}
        path = _with_query(f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(pod)}/log", query)
        try:
            return self._with_retries(lambda: self._once("GET", path)).data.decode(errors="replace")
        except ClusterError:
            return ""

    def _path(self, ref: Ref) -> str:
        plural = self.plural(ref.api_version, ref.kind)
        if plural is None:
            raise ClusterError(f"the cluster does not know the kind `{ref.kind}` of `{ref.api_version}`")
        parts = [f"/apis/{ref.api_version}" if "/" in ref.api_version else f"/api/{ref.api_version}"]
        parts += ["namespaces", quote(ref.namespace)] if ref.namespace else []
        return "/".join([*parts, plural, *([quote(ref.name)] if ref.name else [])])

    def _send(
        self,
        about: Ref | str,
        method: str,
        path: str,
        body: Document | None = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        races: bool = False,
    ) -> Applied:
        whole, sent = _with_query(path, query or {}), None if body is None else json.dumps(body).encode()
        try:
            answer = self._with_retries(lambda: self._once(method, whole, sent, content_type), races=races)
        except ClusterError as err:
            # The words of a server, such as `etcdserver: request timed out`, need not name what was asked. That it is
            # out of reach is no error of one address, but an object may have been written all the same.
            if isinstance(err, ApiError) or isinstance(about, Ref):
                err.message = f"{about}: {err.message}"
            raise
        try:
            document = json.loads(answer.data)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            start = answer.data[:SHOWN].decode(errors="replace")
            text = f"{self.server} (context `{self.context}`) does not answer as an API server does: `{start}`"
            raise ClusterError(text, hint="check `server` of the context; does a proxy ask for a login?")
        return Applied(document, tuple(map(_warning, answer.headers.getlist("Warning"))))

    def _once(
        self, method: str, path: str, body: bytes | None = None, content_type: str = "application/json"
    ) -> urllib3.BaseHTTPResponse:
        """One request, tried once. Raises ClusterError if there is no answer, ApiError if it is no success."""
        headers = UNCACHED | {"Accept": "application/json"} | ({"Content-Type": content_type} if body else {})
        _, url, headers, _, _ = self._api.param_serialize(
            method, path, header_params=headers, auth_settings=["BearerToken"]
        )
        pool = self._api.rest_client.pool_manager
        try:
            answer: urllib3.BaseHTTPResponse = pool.request(
                method, url, body=body, headers=headers, timeout=_TIMEOUT, redirect=False
            )
        except urllib3.exceptions.HTTPError as err:
            text, hint = describe_unreachable(err)
            raise ClusterError(f"{self.server} (context `{self.context}`): {text}", hint=hint) from err
        if not 200 <= answer.status < 300:
            raise api_error(answer.status, answer.reason or "", answer.data, answer.headers)
        return answer

    def _with_retries(
        self, send: Callable[[], urllib3.BaseHTTPResponse], *, races: bool = False
    ) -> urllib3.BaseHTTPResponse:
        """The result of `send`, after up to five tries if its errors are transient; with `races`, also after a lost
        race. A server that has answered before is tried for a minute."""
        attempt, waited_s, began = 0, 0.0, time.monotonic()
        while True:
            attempt += 1
            try:
                answer = send()
            except ClusterError as error:
                is_answer = isinstance(error, ApiError)
                self._has_answered |= is_answer
                is_away = self._has_answered and not is_answer
                has_time = is_away and max(waited_s, time.monotonic() - began) < _AWAY_S
                if not may_recover(error, races=races) or (attempt >= _TRIES and not has_time):
                    raise
                asked_s = error.retry_after_s if isinstance(error, ApiError) else None
                longest_s = _AWAY_PAUSE_S if is_away else _LONGEST_PAUSE_S
                pause_s = min(longest_s, asked_s if asked_s is not None else 0.1 * 2**attempt)
                waited_s += pause_s
                self._pause(pause_s)
            else:
                self._has_answered = True
                return answer


def _with_query(path: str, query: Mapping[str, str]) -> str:
    given = {name: value for name, value in query.items() if value}
    return f"{path}?{urlencode(given)}" if given else path


def _warning(header: str) -> str:
    """The text in a `Warning: 299 - "…"` header."""
    return header.partition('"')[2].rpartition('"')[0].replace('\\"', '"') or header
