"""Validates objects against schemas: for each version Kubernetes' own, from the package `kubernetes-validate`; for
custom resources those in the folder `schemas`.

Only the data of that package is used: its function stops at the first mistake, and accepts unknown kinds."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from referencing import Registry, Resource

from marina.config.distribution import install_command
from marina.config.errors import ToolMissing, listed, nearest
from marina.config.yaml_lines import Location

_TYPES = {
    "array": "a list",
    "boolean": "`true` or `false`",
    "integer": "a whole number",
    "number": "a number",
    "object": "a mapping of fields",
    "string": "text",
}


@dataclass(frozen=True)
class SchemaMistake:
    """One place where an object does not match its schema."""

    path: Location
    text: str
    hint: str | None = None


def mistakes(data: dict[str, Any], version: str) -> list[SchemaMistake]:
    """Every mistake in an object by the schemas of Kubernetes `version`. Computed once for all that are equal."""
    return _mistakes(json.dumps(data), version)


@cache
def _mistakes(text: str, version: str) -> list[SchemaMistake]:
    data = json.loads(text)
    kind, api_version = str(data.get("kind")), str(data.get("apiVersion"))
    validator = _validator(kind, api_version, version)
    if validator is None:
        return [SchemaMistake(("apiVersion",), f"got `{api_version}`, in which there is no `{kind}`")]
    # The API server ignores the status.
    read = {name: value for name, value in data.items() if name != "status"}
    return list(dict.fromkeys(mistake for error in validator.iter_errors(read) for mistake in _described(error)))


@cache
def _validator(kind: str, api_version: str, version: str) -> Draft202012Validator | None:
    if schema := _shipped().get((kind, api_version)):
        return Draft202012Validator(schema, registry=_definitions(version))
    # The file of rbac.authorization.k8s.io/v1 is called rbac-v1.
    short = re.sub(r"^([^./]*)(\.[^/]*)?/", r"\1-", api_version)
    try:
        schema = json.loads((_folder(version) / f"{kind.lower()}-{short}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        # Nobody's kind: there is no such file, or there cannot be one.
        return None
    for known in schema.get("x-kubernetes-group-version-kind", []):
        if (known["kind"], f"{known['group']}/{known['version']}".removeprefix("/")) == (kind, api_version):
            return Draft202012Validator(schema, registry=_definitions(version))
    return None


@cache
def _folder(version: str) -> Traversable:
    try:
        root = files("kubernetes_validate") / "kubernetes-json-schema"
    except ModuleNotFoundError as err:
        raise ToolMissing("the schemas of Kubernetes are not installed", hint=install_command("deploy")) from err
    return root / f"v{version}.0-local-strict"


@cache
def _definitions(version: str) -> Registry[Any]:
    text = (_folder(version) / "_definitions.json").read_text(encoding="utf-8")
    return Resource.from_contents(json.loads(text)) @ Registry()


@cache
def _shipped() -> dict[tuple[str, str], dict[str, Any]]:
    """The schemas that Marina ships, by kind and API version."""
    schemas: dict[tuple[str, str], dict[str, Any]] = {}
    for file in (files("marina.k8s.verify") / "schemas").iterdir():
        if file.name.endswith(".json"):
            schema = json.loads(file.read_text(encoding="utf-8"))
            fields = schema["properties"]
            schemas |= {(fields["kind"]["const"], api): schema for api in fields["apiVersion"]["enum"]}
    return schemas


def _described(error: ValidationError) -> Iterator[SchemaMistake]:
    path: Location = tuple(error.absolute_path)
    instance: Any = error.instance
    wanted: Any = error.validator_value
    if error.validator == "additionalProperties" and isinstance(instance, dict):
        schema: Any = error.schema
        known = schema.get("properties", {})
        for name in sorted(instance.keys() - known.keys()):
            near = nearest(name, known)
            text = "unknown field" + (f", did you mean `{near}`?" if near else "")
            yield SchemaMistake((*path, name), text, near and f"write `{near}`")
    elif error.validator == "required":
        for name in (name for name in wanted if name not in instance):
            yield SchemaMistake((*path, name), "missing, but required", f"add `{name}:`")
    else:
        yield SchemaMistake(path, f"got {shown(instance)}, allowed: {_allowed(str(error.validator), wanted)}")


def _allowed(validator: str, value: Any) -> str:
    """What one keyword of a schema allows."""
    if validator == "enum":
        return listed(value)
    if validator == "oneOf" and all("type" in branch for branch in value):
        validator, value = "type", [name for branch in value for name in _listed(branch["type"])]
    if validator == "type":
        return " or ".join(_TYPES[name] for name in _listed(value) if name != "null")
    words = {
        "minimum": f"{value} or more",
        "maximum": f"{value} or less",
        "minItems": f"at least {value}",
        "maxItems": f"at most {value}",
        "minLength": f"at least {value} character(s)",
        "maxLength": f"at most {value} characters",
        "pattern": f"text that matches `{value}`",
        "const": f"`{value}`",
        "oneOf": "exactly one of the forms in the schema",
    }
    return words.get(validator, f"what `{validator}` in the schema allows")


def _listed(types: str | list[str]) -> list[str]:
    return [types] if isinstance(types, str) else types


def shown(value: object) -> str:
    """A value in a sentence."""
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else f"a list of {len(value)}"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return f"`{text if len(text) <= 60 else text[:57] + '…'}`"
