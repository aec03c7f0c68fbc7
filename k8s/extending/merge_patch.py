"""Applies strategic merge patches as `kubectl patch` does: mappings are merged, null deletes a key, a list with a merge
key is merged item by item, any other list is replaced, and `$patch: delete` or `$patch: replace` says otherwise."""

from copy import deepcopy
from typing import Any

from marina.config.errors import listed

# The merge keys of each list, by the list's name; an item has one of them. A test compares this table with Kubernetes'
# own schemas.
MERGE_KEYS: dict[str, tuple[str, ...]] = {
    "containers": ("name",),
    "env": ("name",),
    "ephemeralContainers": ("name",),
    "evictionResponders": ("name",),
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
    # Of a PrometheusRule, so that a patch can change one alert.
    "groups": ("name",),
    "rules": ("alert", "record"),
}
_ACTIONS = ("delete", "replace")


class PatchError(ValueError):
    """A patch cannot be applied; the message gives the path in the object and the reason."""

    def __init__(self, path: str, text: str) -> None:
        super().__init__(f"`{path or '/'}`: {text}")


def apply_merge_patch(original: Any, patch: dict[str, Any], path: str = "") -> dict[str, Any]:
    """A copy of the object with the patch merged in."""
    result = dict(original) if isinstance(original, dict) and _action(patch, path) != "replace" else {}
    for key, value in patch.items():
        here = f"{path}/{key}"
        if value is None or (isinstance(value, dict) and _action(value, here) == "delete"):
            result.pop(key, None)
        elif isinstance(value, dict):
            result[key] = apply_merge_patch(result.get(key), value, here)
        elif isinstance(value, list) and isinstance(old := result.get(key) or [], list):
            result[key] = _merge_list(old, value, MERGE_KEYS.get(key, ()), here)
        elif key != "$patch":
            result[key] = deepcopy(value)
    return result


def _merge_list(old: list[Any], patch: list[Any], keys: tuple[str, ...], path: str) -> list[Any]:
    key = next((key for key in keys for item in [*old, *patch] if isinstance(item, dict) and key in item), None)
    if key is None:
        return deepcopy(patch)
    new, gone, merged = {}, set(), {item.get(key): item for item in old if isinstance(item, dict)}
    replaced = {"$patch": "replace"} in patch
    for number, item in enumerate(patch):
        if item == {"$patch": "replace"}:
            continue
        if not isinstance(item, dict) or key not in item:
            raise PatchError(f"{path}/{number}", f"got `{item}`, allowed: a mapping with `{key}`, the list's merge key")
        if isinstance(name := item[key], dict | list):
            raise PatchError(f"{path}/{number}/{key}", f"got `{name}`, allowed: the merge key of this list")
        if _action(item, f"{path}/{name}") == "delete":
            gone.add(name)
        else:
            new[name] = apply_merge_patch(None if replaced else merged.get(name), item, f"{path}/{name}")
    return _in_order({} if replaced else {name: merged[name] for name in merged if name not in gone}, new)


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


def _action(patch: dict[str, Any], path: str) -> Any:
    for key in patch:
        if key.startswith("$") and key != "$patch":
            raise PatchError(path, f"`{key}`: unknown directive, allowed: `$patch`")
    action = patch.get("$patch")
    if action is not None and action not in _ACTIONS:
        raise PatchError(path, f"`$patch`: got `{action}`, allowed: {listed(_ACTIONS)}")
    return action
