"""Fields of the pods that Marina derives. A patch may change them, but readiness, the drain and the measurements hold
only for the rendered values."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from marina.config.spec import Spec

_PROBE = "with the rendered probes a pod is ready after a real inference, and a slow start is not killed"
_MEASURED = "the service was measured with these: change `kubernetes.resources`, which is checked against the evidence"
# Fields of the pod and of the server's container, and what depends on the rendered value.
_OF_POD = {
    "terminationGracePeriodSeconds": "it covers the drain: `serving.drain_timeout_s` changes both",
}
_OF_SERVER = {
    "args": "they name the server's spec and package",
    "command": "it starts the supervisor, which reports readiness and drains",
    "image": "it contains the package that was measured: change it with `marina image`",
    "lifecycle": "the supervisor drains by itself, and a hook uses up part of the grace period",
    "livenessProbe": _PROBE,
    "readinessProbe": _PROBE,
    "resources": _MEASURED,
    "startupProbe": _PROBE,
}


@dataclass(frozen=True)
class PatchedField:
    """A derived field that a patch changed, and what depends on the rendered value."""

    path: str
    """In the pod template, written as findings write it."""
    why: str


def find_patched_fields(rendered: dict[str, Any], patched: dict[str, Any], server: str) -> Iterator[PatchedField]:
    """The derived fields of the pods in which a Deployment differs before and after its patches."""
    before, after = (document["spec"]["template"]["spec"] for document in (rendered, patched))
    for name, why in _OF_POD.items():
        if before.get(name) != after.get(name):
            yield PatchedField(name, why)
    servers = [
        next(container for container in pod["containers"] if container["name"] == server) for pod in (before, after)
    ]
    for name, why in _OF_SERVER.items():
        if servers[0].get(name) != servers[1].get(name):
            yield PatchedField(f"containers[{server}].{name}", why)


def summarise_patches(spec: Spec) -> str:
    """Which objects the spec's patches change, and where each patch is written; empty without patches."""
    return ", ".join(
        f"{patch.kind}{f' {patch.name}' if patch.name else ''} by {patch.file or 'the spec'}"
        for patch in spec.kubernetes.patches
    )
