"""Applies strategic merge patches as `kubectl patch` does: mappings are merged, null deletes a key, a list with a merge
key is merged item by item, and any other list is replaced, unless `$patch`, `$retainKeys` or `$deleteFromPrimitiveList`
says otherwise.

https://github.com/kubernetes/community/blob/master/contributors/devel/sig-api-machinery/strategic-merge-patch.md"""

from copy import deepcopy
from typing import Any

# The merge keys of each list, by the list's name; None if its items are plain values. The `ports` of a container and of
# a Service have different keys, and an item has one of the two. A test compares this table with Kubernetes' own
# schemas.
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
    """A patch cannot be applied; the message gives the path in the object and the reason."""

    def __init__(self, path: str, text: str) -> None:
        super().__init__(f"`{path or '/'}`: {text}")


def apply_merge_patch(original: Any, patch: dict[str, Any], *, by_keys: bool) -> Any:
    """A copy of the object with the patch merged in. Without `by_keys` every list is replaced, as the API server does
    for custom resources, whose lists have no merge keys."""
    return _merge_mapping(original, patch, "", by_keys)


def _merge_mapping(original: Any, patch: dict[str, Any], path: str, by_keys: bool) -> dict[str, Any]:
    _check_directives(patch, path)
    if _action(patch, path) == "replace":
        return {key: _without_directives(value) for key, value in patch.items() if _adds_value(key, value)}
    result = dict(original) if isinstance(original, dict) else {}
    if _RETAIN in patch:
        result = {key: value for key, value in result.items() if key in patch[_RETAIN]}
    for key, value in patch.items():
        here = f"{path}/{key}"
        if key.startswith(_DELETE_FROM):
            name = key.removeprefix(_DELETE_FROM)
            current = result.get(name) or []
            if not isinstance(current, list):
                raise PatchError(f"{path}/{name}", f"`{key}`: got `{current}`, allowed: a list to delete from")
            result[name] = [item for item in current if item not in value]
        elif key.startswith("$"):
            continue
        elif value is None or (isinstance(value, dict) and _action(value, here) == "delete"):
            result.pop(key, None)
        elif isinstance(value, dict):
            result[key] = _merge_mapping(result.get(key), value, here, by_keys)
        elif isinstance(value, list) and by_keys and key in MERGE_KEYS and isinstance(result.get(key, []), list):
            result[key] = _merge_list(result.get(key) or [], value, MERGE_KEYS[key], here)
        else:
            result[key] = _without_directives(value)
    return result


def _merge_list(original: list[Any], patch: list[Any], keys: tuple[str, ...] | None, path: str) -> list[Any]:
    if keys is None:
        return [*original, *(item for item in patch if item not in original)]
    for number, item in enumerate(patch):
        if not isinstance(item, dict):
            raise PatchError(f"{path}/{number}", f"got `{item}`, allowed: a mapping, as the items of this list are")
    actions = [_action(item, f"{path}/{number}") for number, item in enumerate(patch)]
    plain = [item for item, action in zip(patch, actions, strict=True) if action in (None, "merge")]
    if "replace" in actions:
        return [_without_directives(item) for item in plain]
    key = _merge_key(original, patch, keys, path)
    gone = [item.get(key) for item, action in zip(patch, actions, strict=True) if action == "delete"]
    old = {item.get(key): item for item in original if item.get(key) not in gone}
    new = {
        item.get(key): _merge_mapping(old.get(item.get(key)), item, f"{path}/{item.get(key)}", True) for item in plain
    }
    return _in_order(old, new)


def _merge_key(original: list[Any], patch: list[Any], keys: tuple[str, ...], path: str) -> str:
    """The merge key of a list: the first of `keys` that any of the items has."""
    key = next((key for key in keys for item in [*original, *patch] if isinstance(item, dict) and key in item), keys[0])
    for number, item in enumerate(patch):
        if key not in item and _DIRECTIVE not in item:
            raise PatchError(f"{path}/{number}", f"missing: `{key}`, the merge key of this list")
        if isinstance(item.get(key), (dict, list)):
            raise PatchError(f"{path}/{number}/{key}", f"got `{item[key]}`, allowed: the merge key of this list")

    return key


def _in_order(old: dict[Any, Any], new: dict[Any, Any]) -> list[Any]:
    """The items in the API server's order: an item that the patch names comes as early as possible, but after the items
    that came before it in the original."""
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


def _check_directives(patch: dict[str, Any], path: str) -> None:
    for key, value in patch.items():
        if key.startswith("$") and key not in (_DIRECTIVE, _RETAIN) and not key.startswith(_DELETE_FROM):
            allowed = f"`{_DIRECTIVE}`, `{_RETAIN}`, `{_DELETE_FROM}FIELD`"
            raise PatchError(path, f"`{key}`: unknown directive, allowed: {allowed}")
        if key.startswith(("$r", "$d")) and not isinstance(value, list):
            raise PatchError(path, f"`{key}`: got `{value}`, allowed: a list")


def _without_directives(value: Any) -> Any:
    """The result of a patch where the object has nothing yet: its values without directives, nulls and deletions."""
    if isinstance(value, list):
        return [_without_directives(item) for item in value]
    if not isinstance(value, dict):
        return deepcopy(value)
    return {key: _without_directives(item) for key, item in value.items() if _adds_value(key, item)}


def _adds_value(key: str, value: Any) -> bool:
    """Whether this key of a patch is still there after the patch was applied where the object had nothing."""
    deleted = isinstance(value, dict) and value.get(_DIRECTIVE) == "delete"
    return not (key.startswith("$") or value is None or deleted)
