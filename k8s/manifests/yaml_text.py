"""Objects as YAML that is the same to the byte every time and reads alike in every parser."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import yaml
from pydantic import BaseModel

# What a person looks for comes first; the rest keeps its order.
_FIRST = ("apiVersion", "kind", "metadata", "name", "namespace", "labels", "annotations", "type")
# Text that PyYAML leaves bare, although parsers of YAML 1.2 and Go's take it for a number or a truth.
_NUMBER = re.compile(r"[-+]?(0[xob][\da-fA-F_]+|(\d[\d_]*)(\.[\d_]*)?([eE][-+]?\d+)?)|[yYnN]|~")


class _Dumper(yaml.CSafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    if "\n" in text:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|")
    style = '"' if _NUMBER.fullmatch(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def plain(*objects: BaseModel) -> list[dict[str, Any]]:
    """Typed objects as plain data in the order in which people read it."""
    return [ordered(model.model_dump(mode="json", by_alias=True, exclude_none=True)) for model in objects]


def custom(api_version: str, kind: str, metadata: BaseModel, spec: dict[str, Any]) -> dict[str, Any]:
    """A custom resource, which the `kubernetes` client has no type for; what is written is checked against the schemas
    that come with Marina."""
    return {"apiVersion": api_version, "kind": kind, "metadata": plain(metadata)[0], "spec": spec}


def ordered(data: Any) -> Any:
    """The same data with names in front."""
    if isinstance(data, list):
        return [ordered(item) for item in data]
    if not isinstance(data, dict):
        return data
    keys = [key for key in _FIRST if key in data] + [key for key in data if key not in _FIRST]
    return {key: ordered(data[key]) for key in keys}


def one_document(data: Any) -> str:
    """One document, without its `---`."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120, default_flow_style=False)


def to_yaml(documents: Sequence[Any], comment: Iterable[str] = ()) -> str:
    """A file of documents, with lines of comment on top."""
    return "".join(f"# {line}\n" for line in comment) + "---\n".join(map(one_document, documents))
