"""What names an object in a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MANAGER = "marina"
"""Under this name Marina's fields are owned."""

Document = dict[str, Any]
"""An object as JSON has it."""


@dataclass(frozen=True, order=True)
class Ref:
    """What names one object in a cluster."""

    api_version: str
    kind: str
    namespace: str
    """Empty for what is in no namespace."""
    name: str

    @classmethod
    def of(cls, document: Document) -> Ref:
        """The reference to a document's object."""
        metadata = document["metadata"]
        return cls(document["apiVersion"], document["kind"], metadata.get("namespace") or "", metadata["name"])

    @property
    def group(self) -> str:
        return self.api_version.partition("/")[0] if "/" in self.api_version else ""

    def same_object(self, other: Ref) -> bool:
        """Whether both name one object, in whatever version of its group."""
        mine, theirs = (self.group, self.kind, self.namespace), (other.group, other.kind, other.namespace)
        return mine == theirs and self.name == other.name

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"
