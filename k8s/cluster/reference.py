"""References to objects in a cluster."""

from dataclasses import dataclass
from typing import Any

MANAGER = "marina"
"""The field manager that owns the fields that Marina applies."""

Document = dict[str, Any]
"""An object in its JSON form."""


@dataclass(frozen=True, order=True)
class Ref:
    """A reference to one object in a cluster."""

    api_version: str
    kind: str
    namespace: str
    """Empty for objects that are in no namespace."""
    name: str

    @classmethod
    def of(cls, document: Document) -> "Ref":
        """The reference to the object in a document."""
        metadata = document["metadata"]
        return cls(document["apiVersion"], document["kind"], metadata.get("namespace") or "", metadata["name"])

    @property
    def group(self) -> str:
        return self.api_version.partition("/")[0] if "/" in self.api_version else ""

    def same_object(self, other: "Ref") -> bool:
        """Whether both refer to one object, whatever the API version in its group."""
        first, second = ((ref.group, ref.kind, ref.namespace, ref.name) for ref in (self, other))
        return first == second

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"
