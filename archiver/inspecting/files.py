"""What in a file that is no Python has other programs run something: names, first bytes, and what stands in texts."""

from __future__ import annotations

import re
from collections.abc import Iterator

_PROGRAMS = re.compile(r"\.(bat|cmd|ps1|vbs|ser|war|ear|node|deb|rpm|msi|rds|rda|rdata|pyz|egg)$", re.IGNORECASE)
_JAVA_OBJECTS = b"\xac\xed\x00\x05"
_KERAS_CODE = re.compile(rb'"class_name"\s*:\s*"Lambda"')
_FOREIGN_TAG = re.compile(r"(^|[\s\[{,:-])!(!(python|java|ruby|perl|js)|<?tag:yaml\.org,2002:python|![\w.]+\.[\w.]+)")
_ALIAS = re.compile(rb"[\s\[,:-]\*[\w-]+")
_MOST_ALIASES = 50
_OWN_PACKAGES = re.compile(rb"^\s*useVenv\s*:\s*[\"']?true", re.MULTILINE | re.IGNORECASE)
# Jinja's templates, as tokenizers have them, reach everything from there.
_TEMPLATE = re.compile(rb"\{[{%][^{}]{0,2000}?__\w+__")
_TEMPLATE_NAMES = (".json", ".jinja", ".jinja2", ".j2", ".txt", ".yaml", ".yml")
_FOREIGN_CODE = re.compile(rb'"auto_map"\s*:\s*\{[^}]*--')
_TENSORFLOW = re.compile(rb"\b(Eager)?PyFunc(Stateless)?\b|\b(Read|Write)File\b|\bMergeV2Checkpoints\b")
_OUTSIDE = re.compile(rb"location\x12.(\.\./|/)")
# Python runs a line of such a file when it starts, where the file is in its folder of packages.
_START_LINE = re.compile(rb"^import[ \t]", re.MULTILINE)


def find_effects(name: str, data: bytes) -> Iterator[str]:
    """One text for each."""
    lower = name.lower()
    if _PROGRAMS.search(name):
        yield f"{name}: a program of another kind"
    if data.startswith(_JAVA_OBJECTS):
        yield f"{name}: objects of Java, which run code when they are read"
    if (data.startswith(b"\x89HDF") or name.endswith("config.json")) and _KERAS_CODE.search(data):
        yield f"{name}: a Keras layer that holds code"
    if lower.endswith((".yaml", ".yml")):
        yield from _of_yaml(name, data)
    if lower.endswith(_TEMPLATE_NAMES) and _TEMPLATE.search(data):
        yield f"{name}: a template that reaches for the inside of Python"
    if lower.endswith(".json") and _FOREIGN_CODE.search(data):
        yield f"{name}: has code fetched from elsewhere"
    if lower.endswith(".pb") and (call := _TENSORFLOW.search(data)):
        yield f"{name}: a graph of TensorFlow's that calls `{call[0].decode()}`"
    if lower.endswith(".onnx") and _OUTSIDE.search(data):
        yield f"{name}: has weights read from outside the model's folder"
    if lower.endswith(".pth") and _START_LINE.match(data):
        yield f"{name}: lines that Python runs when it starts"


def _of_yaml(name: str, data: bytes) -> Iterator[str]:
    if _FOREIGN_TAG.search(data.decode("utf-8", "replace")):
        yield f"{name}: a YAML tag that makes objects of other programs"
    if len(_ALIAS.findall(data)) > _MOST_ALIASES:
        yield f"{name}: more than {_MOST_ALIASES} YAML aliases, which may stand for any number of values"
    if _OWN_PACKAGES.search(data):
        yield f"{name}: has packages installed, by `useVenv`"
