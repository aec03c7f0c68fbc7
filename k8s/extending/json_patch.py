"""Applies JSON patches (RFC 6902) to plain data: add, copy, move, remove, replace, test."""

import re
from copy import deepcopy
from typing import Any

from marina.config.errors import listed
from marina.k8s.extending.merge_patch import PatchError

# The key that an operation needs besides `op` and `path`.
_NEEDS = {"add": "value", "copy": "from", "move": "from", "remove": "", "replace": "value", "test": "value"}


def apply_json_patch(document: Any, operations: list[Any]) -> Any:
    """A copy of the document with all operations applied. PatchError gives the number of the first one that failed."""
    result = deepcopy(document)
    for number, operation in enumerate(operations):
        try:
            result = _apply(result, _checked(operation))
        except PatchError as err:
            raise PatchError(str(number), f"{err}") from None
    return result


def _checked(operation: Any) -> dict[str, Any]:
    if not isinstance(operation, dict) or str(operation.get("op")) not in _NEEDS:
        got = operation.get("op") if isinstance(operation, dict) else operation
        raise PatchError("op", f"got `{got}`, allowed: {listed(_NEEDS)}")
    for field in ("path", _NEEDS[operation["op"]]):
        if field and field not in operation:
            raise PatchError(field, f"missing: `op: {operation['op']}` needs it")
    for field in ("path", "from"):
        pointer = operation.get(field, "")
        if not isinstance(pointer, str) or (pointer and not pointer.startswith("/")):
            raise PatchError(field, f"got `{pointer}`, allowed: a pointer such as `/spec/replicas`")
    return operation


def _apply(document: Any, operation: dict[str, Any]) -> Any:
    kind, pointer = operation["op"], operation["path"]
    if kind == "test":
        if not _same(current := _find(document, pointer), operation["value"]):
            raise PatchError(pointer, f"the test failed: got `{current}`, tested for `{operation['value']}`")
        return document
    if kind in ("copy", "move"):
        source = operation["from"]
        value = deepcopy(_find(document, source))
        if kind == "move":
            if pointer.startswith(f"{source}/"):
                raise PatchError(pointer, f"lies inside `{source}`, and nothing can be moved into itself")
            _remove(document, source)
    elif kind == "remove":
        _remove(document, pointer)
        return document
    else:
        value = deepcopy(operation["value"])
    if not pointer:
        return value
    if kind == "replace":
        _replace(document, pointer, value)
    else:
        _add(document, pointer, value)
    return document


def _add(document: Any, pointer: str, value: Any) -> None:
    parent, last = _parent(document, pointer)
    if isinstance(parent, list):
        parent.insert(len(parent) if last == "-" else _index(parent, last, pointer, len(parent)), value)
    else:
        parent[last] = value


def _replace(document: Any, pointer: str, value: Any) -> None:
    _find(document, pointer)
    parent, last = _parent(document, pointer)
    parent[int(last) if isinstance(parent, list) else last] = value


def _remove(document: Any, pointer: str) -> None:
    parent, last = _parent(document, pointer)
    if isinstance(parent, list):
        del parent[_index(parent, last, pointer, len(parent) - 1)]
    elif last not in parent:
        raise PatchError(pointer, _not_there(parent, last))
    else:
        del parent[last]


def _find(document: Any, pointer: str) -> Any:
    for step in _steps(pointer):
        document = _child(document, step, pointer)
    return document


def _parent(document: Any, pointer: str) -> tuple[Any, str]:
    steps = _steps(pointer)
    if not steps:
        raise PatchError(pointer, "is the object itself, and only its parts can be patched")
    for step in steps[:-1]:
        document = _child(document, step, pointer)
    if not isinstance(document, (dict, list)):
        raise PatchError(pointer, f"its parent is `{document}`, allowed: a mapping or a list")
    return document, steps[-1]


def _child(document: Any, step: str, pointer: str) -> Any:
    if isinstance(document, list):
        return document[_index(document, step, pointer, len(document) - 1)]
    if not isinstance(document, dict) or step not in document:
        raise PatchError(pointer, _not_there(document, step))
    return document[step]


def _not_there(document: Any, step: str) -> str:
    present = f", there are {listed(document)}" if isinstance(document, dict) and document else ""
    return f"there is no `{step}`{present}"


def _index(items: list[Any], step: str, pointer: str, highest: int) -> int:
    if not re.fullmatch(r"0|[1-9][0-9]{0,8}", step) or int(step) > highest:
        raise PatchError(pointer, f"got `{step}` in a list of {len(items)}, allowed: 0 to {highest}")
    return int(step)


def _steps(pointer: str) -> list[str]:
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def _same(left: Any, other: Any) -> bool:
    """Whether two values are equal as JSON, where `true` and `1` differ."""
    if isinstance(left, dict) and isinstance(other, dict):
        return left.keys() == other.keys() and all(_same(left[key], other[key]) for key in left)
    if isinstance(left, list) and isinstance(other, list):
        return len(left) == len(other) and all(map(_same, left, other))
    return isinstance(left, bool) == isinstance(other, bool) and bool(left == other)
