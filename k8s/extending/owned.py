"""Fields of the pods that Marina derives: a patch may change them, but readiness, the drain and what was measured hold
only for the rendered values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from config.spec import Spec

_PROBE = "a pod is ready after a real inference, and a slow start is not killed"
_MEASURED = "it was measured with these: change `kubernetes.resources` instead, which is checked against the evidence"
# Fields of the pod and of the server's container, and what holds only while they are as rendered.
_OF_POD = {
    "terminationGracePeriodSeconds": "it covers the drain: `serving.drain_timeout_s` changes both",
}
_OF_SERVER = {
    "args": "it tells the server its spec and its package",
    "command": "the supervisor drains and says when it is ready",
    "image": "it holds the package that was measured: `marina image` names another",
    "lifecycle": "the supervisor drains by itself, and a hook takes time from the grace period",
    "livenessProbe": _PROBE,
    "readinessProbe": _PROBE,
    "resources": _MEASURED,
    "startupProbe": _PROBE,
}


@dataclass(frozen=True)
class Owned:
    """A field that a patch changed, and what holds only for the rendered value."""

    path: str
    """In a pod's template, as findings write it."""
    why: str


def owned_changes(rendered: dict[str, Any], patched: dict[str, Any], server: str) -> Iterator[Owned]:
    """Of a Deployment before and after its patches: each field of the pods that Marina derives and a patch changed."""
    before, after = (document["spec"]["template"]["spec"] for document in (rendered, patched))
    for name, why in _OF_POD.items():
        if before.get(name) != after.get(name):
            yield Owned(name, why)
    servers = [
        next(container for container in pod["containers"] if container["name"] == server) for pod in (before, after)
    ]
    for name, why in _OF_SERVER.items():
        if servers[0].get(name) != servers[1].get(name):
            yield Owned(f"containers[{server}].{name}", why)


def summarise_patches(spec: Spec) -> str:
    """Which objects the spec's patches change, and where they are written; empty without any."""
    return ", ".join(
        f"{patch.kind}{f' {patch.name}' if patch.name else ''} by {patch.file or 'the spec'}"
        for patch in spec.kubernetes.patches
    )
