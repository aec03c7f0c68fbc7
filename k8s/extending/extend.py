"""Applies to the rendered objects what the spec says: first `kubernetes.pod`, then each of `kubernetes.patches` in
order. Nothing else changes them."""

from collections.abc import Collection, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from marina.config.errors import InputError, listed
from marina.config.sections import Patch
from marina.config.spec import Spec
from marina.k8s.extending.merge_patch import PatchError, apply_merge_patch

Manifest = dict[str, Any]
# Fields by which other objects find this one, or which cannot change after it was applied. `marina verify` judges the
# rest.
_FIXED = {
    "": ("/apiVersion", "/kind", "/metadata/name", "/metadata/namespace"),
    "Deployment": ("/spec/selector", "/spec/template/metadata/labels"),
    "Service": ("/spec/selector",),
}
_PROBE = "with the rendered probes a pod is ready after a real inference, and a slow start is not killed"
_MEASURED = "the service was measured with these: change `kubernetes.resources`, which is checked against the evidence"
# Fields of the pod and of the server's container that Marina derives. A patch may change them, but readiness, the drain
# and the measurements hold only for the rendered values.
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


def extend(
    files: dict[str, list[Manifest]], spec: Spec, *, containers: Collection[str], server: str
) -> dict[str, list[Manifest]]:
    """The objects by file, with the spec's variables, volumes and patches. `containers` get the variables and mounts;
    `server` is the container that no patch may remove."""
    if not spec.kubernetes.pod.model_fields_set and not spec.kubernetes.patches:
        return files
    files = deepcopy(files)
    for documents in files.values():
        for document in documents:
            if document["kind"] == "Deployment":
                _add_to_pod(document["spec"]["template"]["spec"], spec, containers)
    for number, patch in enumerate(spec.kubernetes.patches):
        _apply(files, patch, spec.place("kubernetes", "patches", number), server)
    return files


def find_patched_fields(rendered: Manifest, patched: Manifest, server: str) -> Iterator[PatchedField]:
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
    """Which objects the spec's patches change; empty without patches."""
    patches = spec.kubernetes.patches
    return ", ".join(dict.fromkeys(f"{patch.kind} {patch.name}" if patch.name else patch.kind for patch in patches))


def _add_to_pod(inside: Manifest, spec: Spec, containers: Collection[str]) -> None:
    pod = spec.kubernetes.pod
    _refuse(spec, "volumes", set(pod.volumes) & {volume["name"] for volume in inside["volumes"]})
    inside["volumes"] += [source | {"name": name} for name, source in pod.volumes.items()]
    mounts = {path: _mount(path, volume) for path, volume in pod.mounts.items()}
    volumes = [volume["name"] for volume in inside["volumes"]]
    for path, mount in mounts.items():
        if mount["name"] not in volumes:
            where = spec.place("kubernetes", "pod", "mounts", path)
            text = f"{where}: no volume is called `{mount['name']}`, allowed: {listed(volumes)}"
            raise InputError(text, hint="add it to `kubernetes.pod.volumes`")
    added = {
        "env": [{"name": name, "value": value} for name, value in pod.env.items()],
        "envFrom": [_source(entry) for entry in pod.env_from],
        "volumeMounts": list(mounts.values()),
    }
    for container in [*inside.get("initContainers", []), *inside["containers"]]:
        if container["name"] in containers:
            _refuse(spec, "mounts", set(mounts) & {mount["mountPath"] for mount in container["volumeMounts"]})
            container |= {key: [*container.get(key, []), *items] for key, items in added.items() if items}


def _source(entry: str) -> Manifest:
    kind, _, name = entry.partition("/")
    return {{"configmap": "configMapRef", "secret": "secretRef"}[kind]: {"name": name}}


def _mount(path: str, volume: str) -> Manifest:
    name, _, folder = volume.removesuffix(":ro").partition("/")
    read_only = {"readOnly": True} if volume.endswith(":ro") else {}
    return {"name": name, "mountPath": path} | read_only | ({"subPath": folder} if folder else {})


def _refuse(spec: Spec, field: str, both: set[str]) -> None:
    if both:
        where = spec.place("kubernetes", "pod", field)
        text = f"{where}: {listed(both)} is already rendered by Marina, allowed: other names"
        raise InputError(text, hint="another name, or `kubernetes.patches` to change what is rendered")


def _apply(files: dict[str, list[Manifest]], patch: Patch, where: str, server: str) -> None:
    rendered, hit = [document for documents in files.values() for document in documents], False
    for documents in files.values():
        for place, document in enumerate(documents):
            name = document["metadata"]["name"]
            if document["kind"] != patch.kind or patch.name not in (None, name):
                continue
            hit = True
            try:
                documents[place] = _patched(document, patch.merge, server)
            except PatchError as err:
                raise InputError(f"{where}: {patch.kind} {name}: {err}") from err
    if not hit:
        names = [document["metadata"]["name"] for document in rendered if document["kind"] == patch.kind]
        if names:
            text = f"no {patch.kind} is called `{patch.name}`, allowed: {listed(names)}"
        else:
            text = f"no `{patch.kind}` is rendered, allowed: {listed({document['kind'] for document in rendered})}"
        raise InputError(f"{where}: {text}", hint="to see what is rendered, run `marina manifests` without this patch")


def _patched(document: Manifest, change: Manifest, server: str) -> Manifest:
    if "$patch" in change:
        text = "the object itself cannot be deleted or replaced: other fields of the spec choose what is rendered"
        raise PatchError("", text)
    changed = apply_merge_patch(document, change)
    _check_fixed(document, changed, server)
    return changed


def _check_fixed(before: Manifest, after: Manifest, server: str) -> None:
    """Raises PatchError if a patch changed a field that must stay as it was rendered."""
    # The name of an immutable object is made from its content.
    content = ("/data",) if before.get("immutable") else ()
    for path in (*_FIXED[""], *_FIXED.get(before["kind"], ()), *content):
        old, new = _at(before, path), _at(after, path)
        if path.endswith("/labels") and isinstance(new, dict):
            # A patch may add labels, but not change those that selectors look for.
            new = {key: value for key, value in new.items() if key in old}
        if new != old:
            raise PatchError(path, f"must stay as rendered: other objects find the {before['kind']} by it")
    for path in ("/metadata/annotations", "/metadata/labels", "/spec"):
        new = _at(after, path)
        if not isinstance(new, dict) and (new is not None or (path == "/spec" and "spec" in before)):
            raise PatchError(path, f"got `{new}`, allowed: a mapping of fields")
    if before["kind"] == "Deployment":
        path = "/spec/template/spec/containers"
        containers = _at(after, path)
        names = [_at(container, "/name") for container in containers] if isinstance(containers, list) else []
        if server not in names:
            raise PatchError(path, f"the container `{server}` must stay")


def _at(document: Any, path: str) -> Any:
    for step in path.split("/")[1:]:
        document = document.get(step) if isinstance(document, dict) else None
    return document
