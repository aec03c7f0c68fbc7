"""The API server's error answers as exceptions, with hints about what to do."""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import urllib3

from marina.config.errors import ClusterError

_OWNER = re.compile(r'conflicts? with "(?P<manager>[^"]+)"(?: with subresource "(?P<subresource>[^"]+)")?')
# A patch that the schema refuses is also answered with 500, but retrying does not help.
_NO_NAMESPACE = re.compile(r'^namespaces "([^"]+)" not found')
_FINAL = re.compile(r"field not declared in schema|typed patch object|strict decoding error")
# How much of an answer that is no document is shown.
SHOWN = 60
_HINTS = {
    401: "log in again: the cluster does not accept this context's credentials; they may have expired",
    429: "the cluster is busy; try again in a minute",
}
_UNREACHABLE: tuple[tuple[type[Exception], tuple[str, str | None]], ...] = (
    (
        urllib3.exceptions.SSLError,
        ("its certificate is not accepted: {}", "check `certificate-authority-data` of the context"),
    ),
    (
        urllib3.exceptions.NameResolutionError,
        ("its name cannot be resolved", "is a VPN needed? `kubectl config view --minify`"),
    ),
    (
        urllib3.exceptions.NewConnectionError,
        ("it refuses the connection", "is the cluster running? `kubectl cluster-info`"),
    ),
    (urllib3.exceptions.ConnectTimeoutError, ("connecting timed out", "is a VPN or a proxy needed?")),
    (urllib3.exceptions.ReadTimeoutError, ("it accepted the request but did not answer in time", None)),
)
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
    body = None
    with suppress(ValueError):
        body = json.loads(data)
    body = body if isinstance(body, dict) else {}
    # Only a proxy in front of the API server answers without a message: often with a page of HTML.
    plain = " ".join(data.decode(errors="replace").split())
    text = body.get("message") or f"the answer was {status} {reason}" + (f": `{plain[:SHOWN]}`" if plain else "")
    error = ApiError(status, str(text), body=body, headers=headers)
    error.hint = _HINTS.get(status)
    if status == 404 and (missing := _NO_NAMESPACE.search(error.message)):
        # Whoever may not read namespaces learns only now that there is none.
        error.hint = f"an administrator of the cluster types `kubectl --context ADMIN create namespace {missing[1]}`"
    return error


def describe_unreachable(err: Exception) -> tuple[str, str | None]:
    """Why there was no answer at all, and a hint about what may help."""
    found = (told for kind, told in _UNREACHABLE if isinstance(err, kind))
    text, hint = next(found, ("the connection broke: {}", None))
    return text.format(err), hint


def may_recover(error: ClusterError, *, races: bool) -> bool:
    """Whether the same request may succeed a moment later; with `races`, also after a lost race."""
    if isinstance(error, ApiError):
        return error.is_transient or (races and error.lost_race)
    return not isinstance(error.__cause__, urllib3.exceptions.SSLError | urllib3.exceptions.NameResolutionError)


def _seconds(text: str | None) -> float | None:
    return float(text) if text and text.isdigit() else None
