"""The store of the fake API server: objects with versions, the history for watches, and owned objects."""

import itertools
import threading
import uuid
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from fake_apiserver_kinds import Kind

Document = dict[str, Any]
Key = tuple[str, str, str, str]
"""Group, plural, namespace, name."""


class Refusal(Exception):
    """An answer that is not a success, as a Status."""

    def __init__(self, code: int, reason: str, message: str, details: Document | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.status = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            "code": code,
            **({"details": details} if details else {}),
        }


@dataclass
class Change:
    version: int
    type: str
    key: Key
    document: Document


@dataclass
class Store:
    """Every method is called with the lock held, or holds it."""

    objects: dict[Key, Document] = field(default_factory=dict)
    history: list[Change] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)
    changed: threading.Condition = field(init=False)
    oldest: int = 0
    """Versions up to this one are compacted: a watch from there gets 410."""

    def __post_init__(self) -> None:
        self.changed = threading.Condition(self.lock)
        self._versions = itertools.count(1000)
        self.version = next(self._versions)

    def get(self, kind: Kind, namespace: str, name: str) -> Document:
        document = self.objects.get(key(kind, namespace, name))
        if document is None:
            group = f".{kind.group}" if kind.group else ""
            raise Refusal(
                404, "NotFound", f'{kind.plural}{group} "{name}" not found', {"name": name, "kind": kind.plural}
            )
        return deepcopy(document)

    def list(self, kind: Kind, namespace: str) -> list[Document]:
        return [
            deepcopy(document)
            for (group, plural, space, _), document in sorted(self.objects.items())
            if (group, plural) == (kind.group, kind.plural) and namespace in ("", space)
        ]

    def put(self, kind: Kind, document: Document) -> Document:
        """Stores an object. If nothing changed, it keeps its version, as in etcd."""
        metadata = document["metadata"]
        place = key(kind, metadata.get("namespace", ""), metadata["name"])
        before = self.objects.get(place)
        if before is None:
            metadata.setdefault("uid", str(uuid.uuid4()))
            metadata.setdefault("creationTimestamp", now())
            metadata["generation"] = 1
        elif _same(before, document):
            return deepcopy(before)
        elif before.get("spec") != document.get("spec"):
            metadata["generation"] = before["metadata"].get("generation", 1) + 1
        with self.changed:
            self.version = next(self._versions)
            metadata["resourceVersion"] = str(self.version)
            self.objects[place] = deepcopy(document)
            kind_of_change = "ADDED" if before is None else "MODIFIED"
            self.history.append(Change(self.version, kind_of_change, place, deepcopy(document)))
            self.changed.notify_all()
        return deepcopy(document)

    def remove(self, place: Key) -> None:
        """Deletes an object, and all that it owns."""
        with self.changed:
            document = self.objects.pop(place, None)
            if document is None:
                return
            self.version = next(self._versions)
            document["metadata"]["resourceVersion"] = str(self.version)
            self.history.append(Change(self.version, "DELETED", place, document))
            self.changed.notify_all()
            uid = document["metadata"]["uid"]
            owned = [
                other
                for other, document in self.objects.items()
                if any(ref["uid"] == uid for ref in document["metadata"].get("ownerReferences", []))
            ]
            inside = [other for other in self.objects if place[1] == "namespaces" and other[2] == place[3]]
            for other in owned + inside:
                self.remove(other)

    def compact(self) -> None:
        """Forgets the history, as etcd does every five minutes."""
        with self.changed:
            self.oldest = self.version
            self.history.clear()
            self.changed.notify_all()


def key(kind: Kind, namespace: str, name: str) -> Key:
    return kind.group, kind.plural, namespace if kind.namespaced else "", name


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _same(before: Document, after: Document) -> bool:
    def bare(document: Document) -> Document:
        entries = document["metadata"].get("managedFields", [])
        untimed = [{key: value for key, value in entry.items() if key != "time"} for entry in entries]
        left_out = ("resourceVersion", "generation", "managedFields")
        metadata = {key: value for key, value in document["metadata"].items() if key not in left_out}
        return {**document, "metadata": {**metadata, "managedFields": untimed}}

    return bare(before) == bare(after)
