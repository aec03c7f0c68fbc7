"""Applies to the rendered objects what the spec says: first `kubernetes.pod`, then each of `kubernetes.patches` in
order. Nothing else changes them."""

from collections.abc import Collection
from copy import deepcopy
from typing import Any

from marina.config.errors import InputError, SpecError, listed, reason_of
from marina.config.sections import Patch
from marina.config.spec import Spec
from marina.config.yaml_lines import read_documents
from marina.k8s.extending.json_patch import apply_json_patch
from marina.k8s.extending.merge_patch import PatchError, apply_merge_patch
from marina.k8s.extending.pod_fields import add_pod_fields

Manifest = dict[str, Any]
# Kubernetes' own API groups, whose lists have known merge keys.
_BUILT_IN = ("", "apps", "autoscaling", "batch", "networking.k8s.io", "policy", "rbac.authorization.k8s.io")
# Fields by which other objects find this one, or which cannot change after it was applied. `marina verify` judges the
# rest.
_FIXED = {
    "": ("/apiVersion", "/kind", "/metadata/name", "/metadata/namespace"),
    "Deployment": ("/spec/selector", "/spec/template/metadata/labels"),
    "Service": ("/spec/selector",),
}


def extend(
    files: dict[str, list[Manifest]], spec: Spec, *, containers: Collection[str], server: str
) -> dict[str, list[Manifest]]:
    """The objects by file, with the spec's pod fields and patches applied. `containers` get the spec's variables and
    mounts; `server` is the container that no patch may remove."""
    if not spec.kubernetes.pod.model_fields_set and not spec.kubernetes.patches:
        return files
    files = deepcopy(files)
    for documents in files.values():
        for document in documents:
            add_pod_fields(document, spec, containers)
    for number, patch in enumerate(spec.kubernetes.patches):
        _apply(files, patch, spec, number, server)
    return files


def _apply(files: dict[str, list[Manifest]], patch: Patch, spec: Spec, number: int, server: str) -> None:
    where = spec.place("kubernetes", "patches", number)
    change, hits = read_patch(patch, spec, number), 0
    for name, documents in files.items():
        for place, document in enumerate(documents):
            if document["kind"] != patch.kind or patch.name not in (None, document["metadata"]["name"]):
                continue
            hits += 1
            reference = f"{patch.kind} {document['metadata']['name']}"
            try:
                changed = _patched(document, change)
                _check_fixed(document, changed, server)
                files[name][place] = changed
            except PatchError as err:
                raise InputError(f"{where}: {reference}: {err}", hint=patch.file) from err
    if not hits:
        rendered = [document for documents in files.values() for document in documents]
        names = [document["metadata"]["name"] for document in rendered if document["kind"] == patch.kind]
        if names:
            text = f"no {patch.kind} is called `{patch.name}`, allowed: {listed(names)}"
        else:
            text = f"no `{patch.kind}` is rendered, allowed: {listed({document['kind'] for document in rendered})}"
        raise InputError(f"{where}: {text}", hint="to see what is rendered, run `marina manifests` without this patch")


def read_patch(patch: Patch, spec: Spec, number: int) -> dict[str, Any] | list[Any]:
    """A patch's mapping or list of operations, read from its file if it names one."""
    if patch.file is None:
        return list(patch.operations) if patch.operations is not None else patch.merge or {}
    file, where = spec.path(patch.file), spec.place("kubernetes", "patches", number, "file")
    try:
        text = file.read_text(encoding="utf-8-sig")
    except FileNotFoundError as err:
        hint = "the path is relative to the spec's folder"
        raise InputError(f"{where}: no such file: `{file}`", hint=hint) from err
    except (OSError, UnicodeDecodeError) as err:
        raise InputError(f"{where}: `{file}` is not readable: {reason_of(err)}") from err
    # JSON is read as YAML, which forbids its tabs.
    documents = list(read_documents(text.expandtabs(2) if file.suffix.lower() == ".json" else text, str(file)))
    if problems := [problem for _, _, wrong in documents for problem in wrong]:
        raise SpecError(problems)
    data = documents[0][0] if len(documents) == 1 else None
    if not isinstance(data, (dict, list)) or not data:
        got = f"`{data}`" if len(documents) == 1 else f"{len(documents)} documents"
        text = f"got {got} in `{file}`, allowed: a mapping to merge, or a list of operations"
        raise InputError(f"{where}: {text}")
    return data


def _patched(document: Manifest, change: dict[str, Any] | list[Any]) -> Any:
    if isinstance(change, list):
        return apply_json_patch(document, change)
    group = document["apiVersion"].rpartition("/")[0]
    if change.get("$patch") in ("delete", "replace"):
        text = "the object itself cannot be deleted or replaced: other fields of the spec choose what is rendered"
        raise PatchError("", text)
    return apply_merge_patch(document, change, by_keys=group in _BUILT_IN)


def _check_fixed(before: Manifest, after: Any, server: str) -> None:
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
        if None in names:
            raise PatchError(f"{path}/{names.index(None)}", "a container needs a `name`")


def _at(document: Any, path: str) -> Any:
    for step in path.split("/")[1:]:
        document = document.get(step) if isinstance(document, dict) else None
    return document
