"""Strategic merge patches, as `kubectl patch` applies them: mappings are merged, null deletes, lists whose items have a
merge key are merged by it and all others are replaced; `$patch`, `$retainKeys` and `$deleteFromPrimitiveList` say
otherwise.

https://github.com/kubernetes/community/blob/master/contributors/devel/sig-api-machinery/strategic-merge-patch.md
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

# By the name of a list: what its items are told apart by; None where the items are plain values. `ports` of a container
# and of a Service have different ones, of which an item has one. A test compares this with Kubernetes' own schemas.
MERGE_KEYS: dict[str, tuple[str, ...] | None] = {
    "containers": ("name",),
    "env": ("name",),
    "ephemeralContainers": ("name",),
    "evictionResponders": ("name",),
    "finalizers": None,
    "hostAliases": ("ip",),
    "imagePullSecrets": ("name",),
    "initContainers": ("name",),
    "ownerReferences": ("uid",),
    "ports": ("containerPort", "port"),
    "resourceClaims": ("name",),
    "schedulingGates": ("name",),
    "secrets": ("name",),
    "topologySpreadConstraints": ("topologyKey",),
    "volumeDevices": ("devicePath",),
    "volumeMounts": ("mountPath",),
    "volumes": ("name",),
}
_DIRECTIVE, _RETAIN, _DELETE_FROM = "$patch", "$retainKeys", "$deleteFromPrimitiveList/"
_ACTIONS = ("delete", "merge", "replace")


class PatchError(ValueError):
    """A patch that cannot be applied: where in the object, and why."""

    def __init__(self, path: str, text: str) -> None:
        super().__init__(f"`{path or '/'}`: {text}")


def merged(original: Any, patch: dict[str, Any], *, by_keys: bool) -> Any:
    """The object with the patch merged into it. Without `by_keys` every list is replaced, as the API server does with
    custom resources, whose lists have no merge keys that a patch knows of."""
    return _merged_mapping(original, patch, "", by_keys)


def _merged_mapping(original: Any, patch: dict[str, Any], path: str, by_keys: bool) -> dict[str, Any]:
    _known_directives(patch, path)
    if _action(patch, path) == "replace":
        return {key: _without_directives(value) for key, value in patch.items() if _stays(key, value)}
    result = dict(original) if isinstance(original, dict) else {}
    if _RETAIN in patch:
        result = {key: value for key, value in result.items() if key in patch[_RETAIN]}
    for key, value in patch.items():
        here = f"{path}/{key}"
        if key.startswith(_DELETE_FROM):
            name = key.removeprefix(_DELETE_FROM)
            there = result.get(name) or []
            if not isinstance(there, list):
                raise PatchError(f"{path}/{name}", f"`{key}`: got `{there}`, allowed: a list to delete from")
            result[name] = [item for item in there if item not in value]
        elif key.startswith("$"):
            continue
        elif value is None or (isinstance(value, dict) and _action(value, here) == "delete"):
            result.pop(key, None)
        elif isinstance(value, dict):
            result[key] = _merged_mapping(result.get(key), value, here, by_keys)
        elif isinstance(value, list) and by_keys and key in MERGE_KEYS and isinstance(result.get(key, []), list):
            result[key] = _merged_list(result.get(key) or [], value, MERGE_KEYS[key], here)
        else:
            result[key] = _without_directives(value)
    return result


def _merged_list(original: list[Any], patch: list[Any], keys: tuple[str, ...] | None, path: str) -> list[Any]:
    if keys is None:
        return [*original, *(item for item in patch if item not in original)]
    for number, item in enumerate(patch):
        if not isinstance(item, dict):
            raise PatchError(f"{path}/{number}", f"got `{item}`, allowed: a mapping, as the items of this list are")
    actions = [_action(item, f"{path}/{number}") for number, item in enumerate(patch)]
    plain = [item for item, action in zip(patch, actions, strict=True) if action in (None, "merge")]
    if "replace" in actions:
        return [_without_directives(item) for item in plain]
    identity = _identity(original, patch, keys, path)
    gone = [identity(item) for item, action in zip(patch, actions, strict=True) if action == "delete"]
    old = {identity(item): item for item in original if identity(item) not in gone}
    new = {
        identity(item): _merged_mapping(old.get(identity(item)), item, f"{path}/{identity(item)}", True)
        for item in plain
    }
    return _in_order(old, new)


def _identity(
    original: list[Any], patch: list[Any], keys: tuple[str, ...], path: str
) -> Callable[[dict[str, Any]], Any]:
    """The field that tells the items of a list apart: the first of the keys that an item has."""
    key = next((key for key in keys for item in [*original, *patch] if isinstance(item, dict) and key in item), keys[0])
    for number, item in enumerate(patch):
        if key not in item and _DIRECTIVE not in item:
            raise PatchError(f"{path}/{number}", f"missing: `{key}`, which tells the items of the list apart")

    def identity(item: dict[str, Any]) -> Any:
        return item.get(key)

    return identity


def _in_order(old: dict[Any, Any], new: dict[Any, Any]) -> list[Any]:
    """The order of the API server: what the patch names comes as early as possible, after what was before it."""
    places = {key: place for place, key in enumerate(old)}
    result, others = [], [key for key in old if key not in new]
    for key in new:
        while others and key in places and places[others[0]] < places[key]:
            result.append(old[others.pop(0)])
        result.append(new[key])
    return result + [old[key] for key in others]


def _action(patch: dict[str, Any], path: str) -> str | None:
    action = patch.get(_DIRECTIVE)
    if action is not None and action not in _ACTIONS:
        allowed = ", ".join(f"`{name}`" for name in _ACTIONS)
        raise PatchError(path, f"`{_DIRECTIVE}`: got `{action}`, allowed: {allowed}")
    return action


def _known_directives(patch: dict[str, Any], path: str) -> None:
    for key, value in patch.items():
        if key.startswith("$") and key not in (_DIRECTIVE, _RETAIN) and not key.startswith(_DELETE_FROM):
            allowed = f"`{_DIRECTIVE}`, `{_RETAIN}`, `{_DELETE_FROM}FIELD`"
            raise PatchError(path, f"`{key}`: unknown directive, allowed: {allowed}")
        if key.startswith(("$r", "$d")) and not isinstance(value, list):
            raise PatchError(path, f"`{key}`: got `{value}`, allowed: a list")


def _without_directives(value: Any) -> Any:
    """What a patch brings where nothing was: its values, without what it says about itself, nulls and deletions."""
    if isinstance(value, list):
        return [_without_directives(item) for item in value]
    if not isinstance(value, dict):
        return deepcopy(value)
    return {key: _without_directives(item) for key, item in value.items() if _stays(key, item)}


def _stays(key: str, value: Any) -> bool:
    """Whether a part of a patch is there once it is applied where nothing was."""
    deleted = isinstance(value, dict) and value.get(_DIRECTIVE) == "delete"
    return not (key.startswith("$") or value is None or deleted)
