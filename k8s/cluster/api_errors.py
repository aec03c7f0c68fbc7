"""The API server's error answers as exceptions, with hints about what to do."""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from shlex import quote
from typing import Any

import urllib3

from marina.config.errors import ClusterError

_OWNER = re.compile(r'conflicts? with "(?P<manager>[^"]+)"(?: with subresource "(?P<subresource>[^"]+)")?')
_FORBIDDEN = re.compile(
    r'User "(?P<user>[^"]+)" cannot (?P<verb>\w+) resource "(?P<resource>[^"]+)" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]+)")?'
)
# A patch that the schema refuses is also answered with 500, but retrying does not help.
_FINAL = re.compile(r"field not declared in schema|typed patch object|strict decoding error")
# How much of an answer that is no document is shown.
SHOWN = 60
_TRANSIENT = frozenset({429, 500, 502, 503, 504})


class ApiError(ClusterError):
    """An answer of the API server other than success."""

    def __init__(self, status: int, message: str, *, body: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        super().__init__(message)
        self.status = status
        self.reason = str(body.get("reason", ""))
        self.causes: list[dict[str, Any]] = (body.get("details") or {}).get("causes") or []
        self.retry_after_s = _seconds(headers.get("Retry-After"))

    @property
    def is_transient(self) -> bool:
        """Whether the same request may succeed a moment later."""
        return self.status in _TRANSIENT and not _FINAL.search(self.message)

    @property
    def conflicts(self) -> list["FieldConflict"]:
        """The fields that another manager owns; empty for every other error."""
        conflicts = []
        for cause in self.causes:
            owner = _OWNER.search(str(cause.get("message", "")))
            if cause.get("reason") == "FieldManagerConflict" and owner:
                conflicts.append(
                    FieldConflict(str(cause.get("field", "")), owner["manager"], owner["subresource"] or "")
                )
        return conflicts

    @property
    def lost_race(self) -> bool:
        """Whether somebody else created or changed the object between our read and our write."""
        return self.status == 409 and not self.conflicts


@dataclass(frozen=True)
class FieldConflict:
    """A field that Marina applies but another manager owns, with another value."""

    field: str
    manager: str
    subresource: str = ""

    @property
    def autoscaled(self) -> bool:
        """Whether it is the number of replicas, set by an autoscaler."""
        return self.field == ".spec.replicas" and self.subresource == "scale"

    def __str__(self) -> str:
        through = f" through `{self.subresource}`" if self.subresource else ""
        return f"`{self.field}` belongs to `{self.manager}`{through}"


def api_error(status: int, reason: str, data: bytes, headers: Mapping[str, str]) -> ApiError:
    """Makes the error for an answer, with a hint if one is known."""
    try:
        body = json.loads(data)
    except ValueError:
        body = {}
    if not isinstance(body, dict):
        body = {}
    # Only a proxy in front of the API server answers without a message: often with a page of HTML.
    plain = " ".join(data.decode(errors="replace").split())
    text = body.get("message") or f"the answer was {status} {reason}" + (f": `{plain[:SHOWN]}`" if plain else "")
    error = ApiError(status, str(text), body=body, headers=headers)
    error.hint = _hint(error)
    return error


def _hint(error: ApiError) -> str | None:
    if error.status == 401:
        return "log in again: the cluster does not accept this context's credentials; they may have expired"
    if error.status == 429:
        return "the cluster is busy; try again in a minute"
    if refusal := _FORBIDDEN.search(error.message):
        group = f".{refusal['group']}" if refusal["group"] else ""
        return grant_commands(refusal["user"], {(refusal["resource"] + group, refusal["verb"])}, refusal["namespace"])
    return None


def grant_commands(user: str, wanted: set[tuple[str, str]], namespace: str | None) -> str:
    """The commands with which an administrator grants `user` these permissions, such as (`deployments.apps`, `patch`),
    and no others: one role for each set of verbs. Their names differ from those of all that was granted before, because
    `create` refuses a role that exists."""
    scope, kind = (f" -n {namespace}", "role") if namespace else ("", "clusterrole")
    _, _, account = user.partition("system:serviceaccount:")
    subject = quote(f"--serviceaccount={account}" if account else f"--user={user}")
    verbs_of: dict[str, set[str]] = defaultdict(set)
    for resource, verb in wanted:
        verbs_of[resource].add(verb)
    resources_of: dict[str, list[str]] = defaultdict(list)
    for resource, verbs in sorted(verbs_of.items()):
        resources_of[",".join(sorted(verbs))].append(resource)
    lines = ["ask an administrator of the cluster to run"]
    for allowed, resources in resources_of.items():
        granted = f"--verb={allowed} --resource={','.join(resources)}"
        name = f"marina-deployer-{hashlib.sha256(f'{granted} {subject}'.encode()).hexdigest()[:6]}"
        lines.append(f"kubectl{scope} create {kind} {name} {granted}")
        lines.append(f"kubectl{scope} create {kind}binding {name} --{kind}={name} {subject}")
    return "\n      ".join(lines)


def describe_unreachable(err: Exception) -> tuple[str, str | None]:
    """Why there was no answer at all, and a hint about what may help."""
    if isinstance(err, urllib3.exceptions.SSLError):
        return f"its certificate is not accepted: {err}", "check `certificate-authority-data` of the context"
    if isinstance(err, urllib3.exceptions.NameResolutionError):
        return "its name cannot be resolved", "is a VPN needed? `kubectl config view --minify`"
    if isinstance(err, urllib3.exceptions.NewConnectionError):
        return "it refuses the connection", "is the cluster running? `kubectl cluster-info`"
    if isinstance(err, urllib3.exceptions.ConnectTimeoutError):
        return "connecting timed out", "is a VPN or a proxy needed?"
    if isinstance(err, urllib3.exceptions.ReadTimeoutError):
        return "it accepted the request but did not answer in time", None
    return f"the connection broke: {err}", None


def may_recover(error: ClusterError) -> bool:
    """Whether retrying may help after a request that got no answer."""
    return not isinstance(error.__cause__, urllib3.exceptions.SSLError | urllib3.exceptions.NameResolutionError)


def _seconds(text: str | None) -> float | None:
    return float(text) if text and text.isdigit() else None
