"""Finds files, other than Python source, that make some program run code or reach out: by their names, their first
bytes and their text."""

import re
from collections.abc import Iterator

# A part of any length must not run over the beginning of another match, or the time grows with the square of the size.
_PROGRAMS = re.compile(r"\.(bat|cmd|ps1|vbs|ser|war|ear|node|deb|rpm|msi|rds|rda|rdata|pyz|egg)$", re.IGNORECASE)
_JAVA_OBJECTS = b"\xac\xed\x00\x05"
_KERAS_CODE = re.compile(rb'"class_name"\s*:\s*"Lambda"')
_FOREIGN_TAG = re.compile(r"(^|[\s\[{,:-])!(!(python|java|ruby|perl|js)|<?tag:yaml\.org,2002:python|![\w.]+\.[\w.]+)")
_ALIAS = re.compile(rb"[\s\[,:-]\*[\w-]+")
_MOST_ALIASES = 50
_OWN_PACKAGES = re.compile(rb"^[^#\n]*\buseVenv[\"']?\s*:\s*[\"']?(true|yes|on)\b", re.MULTILINE | re.IGNORECASE)
# From such an attribute, a Jinja template, as tokenizers contain them, can reach everything in Python.
_TEMPLATE = re.compile(rb"\{[{%][^{}]{0,2000}?__\w+__")
_TEMPLATE_NAMES = (".json", ".jinja", ".jinja2", ".j2", ".txt", ".yaml", ".yml")
_FOREIGN_CODE = re.compile(rb'"auto_map"\s*:\s*\{[^{}]*--')
_TENSORFLOW = re.compile(rb"\b(Eager)?PyFunc(Stateless)?\b|\b(Read|Write)File\b|\bMergeV2Checkpoints\b")
_OUTSIDE = re.compile(rb"location\x12.(\.\./|/)")
# XML that includes other files, or whose entities may expand to any length.
_ENTITY = re.compile(rb"<!ENTITY|<!DOCTYPE[^<>\[]*\b(SYSTEM|PUBLIC)\b|<(\w+:)?include\b[^<>]*\bhref", re.IGNORECASE)
_XML = re.compile(rb"\A\s*<(\?xml|!DOCTYPE|!ENTITY|\w+[\s>/:])", re.IGNORECASE)
_WIDE = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16", b"<\0": "utf-16-le", b"\0<": "utf-16-be"}
_TRUST = re.compile(rb"[\"']?\btrust_remote_code\b[\"']?\s*[:=]\s*[\"']?(true|yes|on|y|1)\b", re.IGNORECASE)
_SETTINGS = (".json", ".yaml", ".yml", ".toml", ".ini", ".cfg", ".conf", ".properties")
# Python runs such lines of a `.pth` file when it starts, if the file is in its site-packages.
_START_LINE = re.compile(rb"^import[ \t]", re.MULTILINE)


def find_side_effects(name: str, data: bytes) -> Iterator[str]:
    """A sentence for each side effect that the file may have."""
    lower = name.lower()
    if _PROGRAMS.search(name):
        yield f"{name}: a program, by its name"
    if data.startswith(_JAVA_OBJECTS):
        yield f"{name}: serialised Java objects, which run code when they are read"
    if (data.startswith(b"\x89HDF") or name.endswith("config.json")) and _KERAS_CODE.search(data):
        yield f"{name}: a Keras layer that contains code"
    if lower.endswith((".yaml", ".yml")):
        yield from _find_in_yaml(name, data)
    if lower.endswith(_TEMPLATE_NAMES) and _TEMPLATE.search(data):
        yield f"{name}: a template that reaches into the internals of Python"
    if lower.endswith(".json") and _FOREIGN_CODE.search(data):
        yield f"{name}: fetches code from elsewhere"
    if lower.endswith(".pb") and (call := _TENSORFLOW.search(data)):
        yield f"{name}: a TensorFlow graph that calls `{call[0].decode()}`"
    if lower.endswith(".onnx") and _OUTSIDE.search(data):
        yield f"{name}: reads weights from outside the model's folder"
    if lower.endswith(_SETTINGS) and _TRUST.search(data):
        yield f"{name}: fetches code from elsewhere, by `trust_remote_code`"
    if _is_reaching_xml(data):
        yield f"{name}: XML with entities or with files from elsewhere"
    if lower.endswith(".pth") and _START_LINE.match(data):
        yield f"{name}: lines that Python runs when it starts"


def _is_reaching_xml(data: bytes) -> bool:
    """Whether the data, in any encoding and under any name, is XML with entities or includes."""
    text = data.removeprefix(b"\xef\xbb\xbf")
    if encoding := _WIDE.get(text[:2]):
        text = text.decode(encoding, "replace").removeprefix("\ufeff").encode("utf-8", "replace")
    return _XML.match(text) is not None and _ENTITY.search(text) is not None


def _find_in_yaml(name: str, data: bytes) -> Iterator[str]:
    if _FOREIGN_TAG.search(data.decode("utf-8", "replace")):
        yield f"{name}: a YAML tag that creates objects of a programming language"
    if len(_ALIAS.findall(data)) > _MOST_ALIASES:
        yield f"{name}: more than {_MOST_ALIASES} YAML aliases, which may expand to any number of values"
    if _OWN_PACKAGES.search(data):
        yield f"{name}: installs packages, by `useVenv`"
