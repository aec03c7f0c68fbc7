"""Merges the affinity that the package needs with the affinity in the spec."""

from copy import deepcopy
from typing import Any

_REQUIRED, _TERMS = "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms"


class AffinityError(ValueError):
    """The affinity in the spec does not have Kubernetes' form; `path` is the place of the mistake in it."""

    def __init__(self, path: str, text: str) -> None:
        super().__init__(text)
        self.path = path


def merge_affinity(rendered: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """An affinity that requires both. A node qualifies if it matches any one of the required terms, so the rendered
    requirements are added to each term of the spec; everything else is taken from the spec unchanged."""
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
    expressions = _part(term, "matchExpressions", [], list, path)
    # An empty term matches no node, and must not start to match some.
    if not expressions and not term.get("matchFields"):
        return term
    return {**term, "matchExpressions": [*expressions, *(deepcopy(item) for item in needed if item not in expressions)]}


def _part(parent: dict[str, Any], key: str, default: Any, kind: type, path: str = "") -> Any:
    """The value of a key, or the default if it is missing or null."""
    value = parent.get(key)
    if value is None:
        return default
    if not isinstance(value, kind):
        allowed = "a list" if kind is list else "a mapping"
        raise AffinityError(f"{path}.{key}".lstrip("."), f"got `{value}`, allowed: {allowed}")
    return value
