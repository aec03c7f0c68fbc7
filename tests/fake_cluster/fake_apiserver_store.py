"""The store of the fake API server: objects with versions, and owned objects."""

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
class Store:
    """Every method is called with the lock held, or holds it."""

    objects: dict[Key, Document] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
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
        with self.lock:
            self.version = next(self._versions)
            metadata["resourceVersion"] = str(self.version)
            self.objects[place] = deepcopy(document)
        return deepcopy(document)

    def remove(self, place: Key) -> None:
        """Deletes an object, and all that it owns."""
        with self.lock:
            document = self.objects.pop(place, None)
            if document is None:
                return
            self.version = next(self._versions)
            uid = document["metadata"]["uid"]
            owned = [
                other
                for other, document in self.objects.items()
                if any(ref["uid"] == uid for ref in document["metadata"].get("ownerReferences", []))
            ]
            inside = [other for other in self.objects if place[1] == "namespaces" and other[2] == place[3]]
            for other in owned + inside:
                self.remove(other)


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
