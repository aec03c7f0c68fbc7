"""The changes of an apply, field by field, in a form that a person can check."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from marina.k8s.cluster import MANAGER, Document

# Metadata that the server and its controllers write.
_WRITTEN_BY_SERVER = ("creationTimestamp", "generation", "managedFields", "resourceVersion", "selfLink", "uid")
_LONGEST = 60
# Fields that identify an item of a list, like the API's merge keys.
_KEYS = ("name", "containerPort", "port", "mountPath", "topologyKey", "alert", "record", "type", "ip", "key")


@dataclass(frozen=True)
class FieldChange:
    """One field, before and after; None if the field does not exist."""

    field: str
    before: Any
    after: Any

    def __str__(self) -> str:
        if self.before is None:
            return f"+ {self.field}: {_short(self.after)}"
        if self.after is None:
            return f"- {self.field}: {_short(self.before)}"
        return f"~ {self.field}: {_short(self.before)} → {_short(self.after)}"


def field_changes(before: Document, after: Document) -> list[FieldChange]:
    """The fields that differ, except those that the server writes by itself."""
    changed = list(_compare("", _own_fields(before), _own_fields(after)))
    if not changed and owned_fields(before) != owned_fields(after):
        changed.append(FieldChange("metadata.managedFields", "fields of others", "shared with marina"))
    return changed


def is_of_others(before: Document, after: Document, document: Document) -> bool:
    """Whether applying the document changes no field of the document, nor which fields it owns: a webhook may have
    written something else, such as the time."""
    same = _named(before, document) == _named(after, document)
    return same and owned_fields(before) == owned_fields(after)


def owned_fields(document: Document, manager: str = MANAGER) -> dict[str, Any] | None:
    """The fields that a manager owns by applying them, as `fieldsV1`; None if it never applied the object."""
    for entry in document["metadata"].get("managedFields") or []:
        if entry.get("manager") == manager and entry.get("operation") == "Apply" and not entry.get("subresource"):
            fields: dict[str, Any] = entry.get("fieldsV1") or {}
            return fields
    return None


def _own_fields(document: Document) -> Document:
    metadata = {key: value for key, value in document["metadata"].items() if key not in _WRITTEN_BY_SERVER}
    return {key: value for key, value in document.items() if key not in ("metadata", "status")} | {"metadata": metadata}


def _named(value: Any, document: Any) -> Any:
    """The part of a stored value that a document names."""
    if isinstance(value, dict) and isinstance(document, dict):
        return {key: _named(value.get(key), document[key]) for key in document}
    if isinstance(value, list) and isinstance(document, list) and (key := _key(value + document)):
        items = {item[key]: item for item in document}
        if len(items) == len(document):
            return [_named(item, items[item[key]]) for item in value if item[key] in items]
    return value


def _compare(path: str, before: Any, after: Any) -> Iterator[FieldChange]:
    if before == after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            yield from _compare(f"{path}.{key}" if path else key, before.get(key), after.get(key))
    elif isinstance(before, list) and isinstance(after, list) and (key := _key(before + after)):
        old, new = ({item[key]: item for item in items} for items in (before, after))
        if len(old) < len(before) or len(new) < len(after) or (list(old) != list(new) and {*old} == {*new}):
            yield FieldChange(path, before, after)
            return
        for name in dict.fromkeys([*old, *new]):
            yield from _compare(f"{path}[{name}]", old.get(name), new.get(name))
    else:
        yield FieldChange(path, before, after)


def _key(items: list[Any]) -> str | None:
    for key in _KEYS:
        if items and all(isinstance(item, dict) and key in item for item in items):
            return key
    return None


def _short(value: Any) -> str:
    if isinstance(value, dict | list):
        inner = list(value)
        return f"{{{', '.join(map(str, inner))}}}" if isinstance(value, dict) else f"{len(inner)} items"
    text = str(value)
    lines = text.count("\n")
    if lines:
        return f"{lines + 1} lines"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
