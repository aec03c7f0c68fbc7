"""The affinity of the pods: what their package needs of a node, and what the spec's user wants, in one."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

_REQUIRED, _TERMS = "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms"


class AffinityError(ValueError):
    """An affinity that is not of Kubernetes' form: where in it, what is there and what is allowed."""

    def __init__(self, path: str, text: str) -> None:
        super().__init__(text)
        self.path = path


def merged_affinity(rendered: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Both at once. A node does for a pod that fits one of the required terms, so what is rendered goes into each of
    the user's; everything else is the user's as it is."""
    wanted = _part(given, "nodeAffinity", {}, dict)
    ours = rendered.get("nodeAffinity", {}).get(_REQUIRED)
    if ours is None:
        return {**rendered, **given}
    required = _part(wanted, _REQUIRED, {}, dict, "nodeAffinity")
    if not required:
        return {**rendered, **given, "nodeAffinity": {**wanted, _REQUIRED: deepcopy(ours)}}
    path = f"nodeAffinity.{_REQUIRED}"
    terms = _part(required, _TERMS, [], list, path)
    if not terms or not all(isinstance(term, dict) for term in terms):
        raise AffinityError(f"{path}.{_TERMS}", f"got `{terms}`, allowed: a list of at least one term")
    (needed,) = ours[_TERMS]
    both = {_TERMS: [_with(term, needed["matchExpressions"], f"{path}.{_TERMS}") for term in terms]}
    return {**rendered, **given, "nodeAffinity": {**wanted, _REQUIRED: both}}


def _with(term: dict[str, Any], needed: list[dict[str, Any]], path: str) -> dict[str, Any]:
    there = _part(term, "matchExpressions", [], list, path)
    # A term that asks nothing fits no node, and must not come to fit one.
    if not there and not term.get("matchFields"):
        return term
    return {**term, "matchExpressions": [*there, *(deepcopy(item) for item in needed if item not in there)]}


def _part(parent: dict[str, Any], key: str, default: Any, kind: type, path: str = "") -> Any:
    """What is there, null read as nothing."""
    value = parent.get(key)
    if value is None:
        return default
    if not isinstance(value, kind):
        allowed = "a list" if kind is list else "a mapping"
        raise AffinityError(f"{path}.{key}".lstrip("."), f"got `{value}`, allowed: {allowed}")
    return value
