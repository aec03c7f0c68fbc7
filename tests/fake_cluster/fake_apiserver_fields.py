"""Server-side apply for the fake API server: field owners, conflicts and merging.

The rules are those of structured-merge-diff; the tables below are from Kubernetes' schemas of the kinds we deploy.
A path is a tuple of elements: `f:NAME`, `k:{…}` for an item of a list with keys, `v:…` for an item of a set.
"""

import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

Path = tuple[str, ...]
Fields = frozenset[Path]

# The keys of list items, by the name of the list; `_PLACES` has the exceptions.
_KEYED: dict[str, tuple[str, ...]] = {
    "conditions": ("type",),
    "containers": ("name",),
    "env": ("name",),
    "initContainers": ("name",),
    "imagePullSecrets": ("name",),
    "ownerReferences": ("uid",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "volumeMounts": ("mountPath",),
    "volumes": ("name",),
}
_PLACES: dict[tuple[str, str], tuple[str, ...]] = {
    ("containers", "ports"): ("containerPort", "protocol"),
    ("initContainers", "ports"): ("containerPort", "protocol"),
    ("Service", "ports"): ("port", "protocol"),
    ("PrometheusRule", "groups"): ("name",),
}
_KEY_DEFAULTS = {"protocol": "TCP"}
_SETS = {"finalizers"}
# Maps that are owned as a whole.
_ATOMIC_MAPS = {
    "selector",
    "labelSelector",
    "podSelector",
    "namespaceSelector",
    "nodeSelector",
    "configMapKeyRef",
    "fieldRef",
    "secretKeyRef",
    "scaleTargetRef",
}
# Fields in every request, which nobody owns.
_IDENTITY = {("f:apiVersion",), ("f:kind",), ("f:metadata", "f:name"), ("f:metadata", "f:namespace")}
_SERVERS = {
    "creationTimestamp",
    "deletionTimestamp",
    "generation",
    "managedFields",
    "resourceVersion",
    "uid",
    "selfLink",
}


class Conflicts(Exception):
    """Fields that others own with other values: (manager entry, path) pairs."""

    def __init__(self, conflicts: list[tuple[dict[str, Any], Path]]) -> None:
        super().__init__(conflicts)
        self.found = conflicts


def apply(
    live: dict[str, Any] | None, config: dict[str, Any], manager: str, *, force: bool, moment: str, defaults: Any
) -> dict[str, Any]:
    """The object after an apply; without `live` it is created. Raises Conflicts."""
    before = deepcopy(live) if live else {"metadata": {}}
    managers = before["metadata"].pop("managedFields", [])
    mine = next((owner for owner in managers if _is(owner, manager, "Apply")), None)
    others = [owner for owner in managers if owner is not mine]
    new = _fields_of(config)
    gone = (decode(mine["fieldsV1"]) if mine else frozenset()) - new
    after = _merged(before, _stripped(config), (config["kind"],))
    held = frozenset().union(*(decode(other["fieldsV1"]) for other in others))
    _remove(after, gone, held)
    # Like a real server, compare the stored value with the sent one before that is brought into its canonical form:
    # somebody who applies `2048Mi` conflicts with an owner of `2Gi`.
    changed = frozenset(path for path in new if _at(before, path) != _at(after, path))
    after = defaults(after)
    if live is not None:
        taken = [(other, path) for other in others for path in sorted(decode(other["fieldsV1"]) & changed, key=_shown)]
        if taken and not force:
            raise Conflicts(taken)
        others = [_without(other, changed) for other in others]
    entry = {
        "manager": manager,
        "operation": "Apply",
        "apiVersion": config["apiVersion"],
        "fieldsType": "FieldsV1",
        "fieldsV1": encode(new),
        "time": moment,
    }
    if mine and mine["fieldsV1"] == entry["fieldsV1"]:
        # A new time alone is no change.
        entry["time"] = mine["time"] if _same(before, after) else moment
    after["metadata"]["managedFields"] = [entry, *(other for other in others if other["fieldsV1"])]
    return after


def update(
    live: dict[str, Any] | None, new: dict[str, Any], manager: str, *, moment: str, subresource: str = ""
) -> dict[str, Any]:
    """The object after a full update; the writer owns what changed."""
    after = deepcopy(new)
    managers = deepcopy((live or {}).get("metadata", {}).get("managedFields", []))
    before = deepcopy(live) if live else {"metadata": {}}
    before["metadata"].pop("managedFields", None)
    after["metadata"].pop("managedFields", None)
    mine_now, there_before = _fields_of(after, after["kind"]), _fields_of(before, after["kind"])
    changed = frozenset(path for path in mine_now if _at(before, path) != _at(after, path))
    lost = changed | (there_before - mine_now)
    kept = []
    mine = next((owner for owner in managers if _is(owner, manager, "Update", subresource)), None)
    for owner in managers:
        rest = _without(owner, lost if owner is not mine else lost - changed)
        if rest["fieldsV1"] and owner is not mine:
            kept.append(rest)
    own = changed | ((decode(mine["fieldsV1"]) if mine else frozenset()) - (there_before - mine_now))
    if own:
        entry = {
            "manager": manager,
            "operation": "Update",
            "apiVersion": after["apiVersion"],
            "fieldsType": "FieldsV1",
            "fieldsV1": encode(own),
            "time": moment if changed or not mine else mine["time"],
        }
        kept.append(entry | ({"subresource": subresource} if subresource else {}))
    after["metadata"]["managedFields"] = kept
    return after


def conflict_status(conflicts: list[tuple[dict[str, Any], Path]]) -> dict[str, Any]:
    """The message and causes of a 409, as a real server writes them."""
    causes, texts = [], []
    for entry, path in conflicts:
        through = f' with subresource "{entry["subresource"]}"' if entry.get("subresource") else ""
        using = f" using {entry['apiVersion']}" if entry["operation"] == "Update" else ""
        said = f'conflict with "{entry["manager"]}"{through}{using}'
        causes.append({"reason": "FieldManagerConflict", "message": said, "field": _shown(path)})
        texts.append((said, _shown(path)))
    if len(texts) == 1:
        message = f"Apply failed with 1 conflict: {texts[0][0]}: {texts[0][1]}"
    else:
        message = f"Apply failed with {len(texts)} conflicts: " + "\n".join(f"{said}: {field}" for said, field in texts)
    return {"message": message, "reason": "Conflict", "details": {"causes": causes}, "code": 409}


def encode(fields: Fields) -> dict[str, Any]:
    """Paths as `fieldsV1`; an item of a list that is owned itself has a `.`."""
    tree: dict[str, Any] = {}
    for path in sorted(fields):
        node = tree
        for element in path:
            node = node.setdefault(element, {})
    return tree


def decode(tree: dict[str, Any], above: Path = ()) -> Fields:
    """`fieldsV1` as paths."""
    paths: set[Path] = set()
    for key, below in tree.items():
        path = (*above, key)
        if not below or key == ".":
            paths.add(path)
        else:
            paths |= decode(below, path)
    return frozenset(paths)


def _fields_of(document: dict[str, Any], kind: str | None = None) -> Fields:
    stripped = _stripped(document)
    return frozenset(_walk(stripped, (kind or document["kind"],), ())) - _IDENTITY


def _stripped(document: dict[str, Any]) -> dict[str, Any]:
    metadata = {key: value for key, value in document["metadata"].items() if key not in _SERVERS}
    return {**document, "metadata": metadata}


def _walk(value: Any, names: tuple[str, ...], path: Path) -> Iterator[Path]:
    """The owned paths of a value."""
    keys = _keys(names)
    if isinstance(value, dict) and value and names[-1] not in _ATOMIC_MAPS:
        for key, below in value.items():
            yield from _walk(below, (*names, key), (*path, f"f:{key}"))
    elif isinstance(value, list) and value and keys:
        for item in value:
            element = _element(item, keys)
            yield (*path, element, ".")
            for key, below in item.items():
                yield from _walk(below, (*names, "[]", key), (*path, element, f"f:{key}"))
    elif isinstance(value, list) and names[-1] in _SETS:
        yield from ((*path, f"v:{json.dumps(item)}") for item in value)
    else:
        yield path


def _keys(names: tuple[str, ...]) -> tuple[str, ...] | None:
    inside = [name for name in names[:-1] if name != "[]"]
    for parent in (inside[-1] if inside else "", inside[0] if inside else ""):
        if (parent, names[-1]) in _PLACES:
            return _PLACES[parent, names[-1]]
    if names[0] == "ServiceAccount":
        return None
    return _KEYED.get(names[-1])


def _element(item: dict[str, Any], keys: tuple[str, ...]) -> str:
    named = {key: item.get(key, _KEY_DEFAULTS.get(key)) for key in keys}
    return "k:" + json.dumps(named, sort_keys=True, separators=(",", ":"))


def _merged(live: Any, config: Any, names: tuple[str, ...]) -> Any:
    keys = _keys(names)
    if isinstance(live, dict) and isinstance(config, dict) and names[-1] not in _ATOMIC_MAPS:
        return {**live, **{key: _merged(live.get(key), value, (*names, key)) for key, value in config.items()}}
    if isinstance(live, list) and isinstance(config, list) and keys:
        old = {_element(item, keys): item for item in live}
        new = {_element(item, keys): item for item in config}
        # Applied items keep their order; items of others follow.
        both = {name: _merged(old.get(name), item, (*names, "[]")) for name, item in new.items()}
        return [*both.values(), *(item for name, item in old.items() if name not in new)]
    if isinstance(live, list) and isinstance(config, list) and names[-1] in _SETS:
        return [*live, *(item for item in config if item not in live)]
    return deepcopy(config)


def _remove(document: dict[str, Any], gone: Fields, held: Fields) -> None:
    """Removes fields that nobody owns any more: whole items first, and only if nobody else owns a field of the item."""
    for path in sorted(gone, key=lambda path: (path[-1] != ".", len(path))):
        whole = path[:-1] if path[-1] == "." else path
        if path not in held and not any(other[: len(whole)] == whole for other in held):
            _drop(document, whole)


def _drop(value: Any, path: Path) -> None:
    for element in path[:-1]:
        value = _step(value, element)
        if value is None:
            return
    last = path[-1]
    if last.startswith("f:") and isinstance(value, dict):
        value.pop(last[2:], None)
    elif isinstance(value, list):
        removed = _step(value, last)
        value[:] = [item for item in value if item is not removed and f"v:{json.dumps(item)}" != last]


def _step(value: Any, element: str) -> Any:
    if element.startswith("f:"):
        return value.get(element[2:]) if isinstance(value, dict) else None
    if element.startswith("k:") and isinstance(value, list):
        keys = tuple(json.loads(element[2:]))
        return next((item for item in value if _element(item, keys) == element), None)
    if element.startswith("v:") and isinstance(value, list):
        return next((item for item in value if f"v:{json.dumps(item)}" == element), None)
    return None


def _at(document: Any, path: Path) -> Any:
    for element in path:
        if element == ".":
            return document is not None
        document = _step(document, element)
    return document


def _without(entry: dict[str, Any], fields: Fields) -> dict[str, Any]:
    return {**entry, "fieldsV1": encode(decode(entry["fieldsV1"]) - fields)}


def _is(entry: dict[str, Any], manager: str, operation: str, subresource: str = "") -> bool:
    return (entry["manager"], entry["operation"], entry.get("subresource", "")) == (manager, operation, subresource)


def _same(before: dict[str, Any], after: dict[str, Any]) -> bool:
    return {**before, "metadata": {**before["metadata"], "managedFields": 0}} == {
        **after,
        "metadata": {**after["metadata"], "managedFields": 0},
    }


def _shown(path: Path) -> str:
    """A path as messages show it: `.spec.template.spec.containers[name="server"].image`."""
    text = ""
    for element in path:
        if element.startswith("f:"):
            text += f".{element[2:]}"
        elif element.startswith("k:"):
            named = json.loads(element[2:])
            text += "[" + ",".join(f"{key}={json.dumps(value)}" for key, value in sorted(named.items())) + "]"
        elif element.startswith("v:"):
            text += f"[={element[2:]}]"
    return text
