"""Specs for tests: the smallest one, and changes to it."""

from collections.abc import Callable
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from marina.config.load import parse_spec
from marina.config.record import Package
from marina.config.spec import Spec

ROOT = Path(__file__).parent.parent
TALES = ROOT / "config/examples/tales/spec.yaml"
DIGITS = ROOT / "config/examples/digits/spec.yaml"

# A variant of the digits example as a fixture packages it: the folder, and its record.
Packaged = Callable[[str], tuple[Path, Package]]

MINIMAL: dict[str, Any] = {
    "name": "shells",
    "model": {"source": "torchvision:resnet18", "weights": "random"},
}
# A change of it to a model that takes one array.
FILE_SOURCE: dict[str, Any] = {
    "model.source": "./model.py:build",
    "model.handler": "tensor",
    "model.inputs": {"x": {"shape": [3]}},
}


def changed(changes: dict[str, Any], base: dict[str, Any] = MINIMAL) -> dict[str, Any]:
    """A copy of spec data with dotted fields set; None takes a field out."""
    data = deepcopy(base)
    for field, value in changes.items():
        *parents, last = field.split(".")
        section = data
        for parent in parents:
            section = section.setdefault(parent, {})
        if value is None:
            section.pop(last, None)
        else:
            section[last] = value
    return data


def make_spec(changes: dict[str, Any] | None = None, file: Path = Path("spec.yaml"), *, files: bool = False) -> Spec:
    """The smallest spec with changes."""
    return parse_spec(_yaml(changed(changes or {})), file, files=files)


def digits_spec(changes: dict[str, Any] | None = None) -> Spec:
    """The digits example with changes; its paths stay valid."""
    return parse_spec(_yaml(changed(changes or {}, _example(DIGITS))), DIGITS)


def tales_spec(changes: dict[str, Any] | None = None) -> Spec:
    """The tales example with changes; its paths stay valid."""
    return parse_spec(_yaml(changed(changes or {}, _example(TALES))), TALES)


@cache
def _example(file: Path) -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return data


def _yaml(data: dict[str, Any]) -> str:
    # In C: specs are made thousands of times.
    text: str = yaml.dump(data, Dumper=yaml.CSafeDumper, sort_keys=False)
    return text
