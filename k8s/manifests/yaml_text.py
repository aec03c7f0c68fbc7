"""Writes objects as YAML that is the same byte for byte every time, and that every parser reads the same way."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import yaml

Manifest = dict[str, Any]
Files = dict[str, list[Manifest]]

# Keys that a reader looks for first; the others keep their order.
_FIRST = ("apiVersion", "kind", "metadata", "name", "namespace", "labels", "annotations", "type")
# Text that PyYAML does not quote, although YAML 1.2 and Go parsers read it as a number, a boolean or null. In numbers
# they ignore `_`.
_AMBIGUOUS = re.compile(r"[-+]?(0[xob][\da-f]+|(?=\.?\d)\d*\.?\d*(e[-+]?\d+)?)|[yn]|~", re.IGNORECASE)


class _Dumper(yaml.CSafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    if "\n" in text:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|")
    style = '"' if _AMBIGUOUS.fullmatch(text.replace("_", "")) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def resource(api_version: str, kind: str, metadata: Manifest, **fields: Any) -> Manifest:
    """An object with these fields beside its metadata."""
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **fields}


def ordered(*objects: Manifest) -> list[Manifest]:
    """The objects without the fields that are None, and with the keys in the order in which people read them."""
    return [_ordered(data) for data in objects]


def _ordered(data: Any) -> Any:
    if isinstance(data, list):
        return [_ordered(item) for item in data]
    if not isinstance(data, dict):
        return data
    keys = [key for key in _FIRST if key in data] + [key for key in data if key not in _FIRST]
    return {key: _ordered(data[key]) for key in keys if data[key] is not None}


def one_document(data: Any) -> str:
    """The YAML of one document, without `---`."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120, default_flow_style=False)


def to_yaml(documents: Sequence[Any], comment: Iterable[str] = ()) -> str:
    """The YAML of a file of documents, with comment lines at the top."""
    return "".join(f"# {line}\n" for line in comment) + "---\n".join(map(one_document, documents))
