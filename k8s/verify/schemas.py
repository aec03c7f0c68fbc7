"""Validates objects against schemas: for each version Kubernetes' own, from the package `kubernetes-validate`; for
custom resources those in the folder `schemas`, and those of CustomResourceDefinitions among the objects.

Only the data of that package is used: its function reads all definitions again for each object, stops at the first
mistake, and silently accepts an API version or a kind that it does not know."""

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import UnknownType, ValidationError
from referencing import Registry, Resource

from marina.config.distribution import install_command
from marina.config.errors import InputError, ToolMissing, listed, nearest
from marina.config.yaml_lines import Location
from marina.k8s.verify.located import LocatedDocument

# API groups of Kubernetes itself, also past ones. An operator's has a dot, and may end in `.k8s.io`, too.
_BUILT_IN = re.compile(
    r"[a-z]*|(admissionregistration|apiextensions|apiregistration|auditregistration"
    r"|authentication|authorization|certificates|coordination|discovery|events|(flowcontrol|internal)\.apiserver"
    r"|imagepolicy|networking|node|rbac\.authorization|resource|scheduling|settings|storage|storagemigration)\.k8s\.io"
)
_TYPES = {
    "array": "a list",
    "boolean": "`true` or `false`",
    "integer": "a whole number",
    "null": "nothing",
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


class Schemas:
    """The schemas of the objects' kinds. CustomResourceDefinitions among the documents add theirs, and replace those
    that Marina ships."""

    def __init__(self, documents: Iterable[LocatedDocument] = ()) -> None:
        self._custom = _shipped() | {key: schema for document in documents for key, schema in _defined(document)}

    def knows(self, document: LocatedDocument, version: str) -> bool:
        """Whether there is a schema for an object's kind in Kubernetes `version`."""
        return _validator_of(document, self._custom.get((document.kind, document.api_version)), version) is not None

    def mistakes(self, document: LocatedDocument, version: str) -> list[SchemaMistake]:
        """Every mistake in an object by the schemas of Kubernetes `version`; empty if it does not know the kind."""
        custom = self._custom.get((document.kind, document.api_version))
        return _mistakes(_ByText(document.data), _ByText(custom), version)

    def custom_kinds(self) -> list[str]:
        """The kinds of custom resources that have a schema."""
        return sorted({kind for kind, _ in self._custom})


class _ByText:
    """A hashable wrapper: two values are equal if their texts are."""

    def __init__(self, value: Any) -> None:
        self.value, self._text = value, repr(value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByText) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


@cache
def _mistakes(data: _ByText, custom: _ByText, version: str) -> list[SchemaMistake]:
    """The mistakes in an object, computed once for all that are equal: overlays repeat most of their objects."""
    validator = _validator_of(LocatedDocument(data.value, ""), custom.value, version)
    # The API server ignores the status, and null in custom resources; the schemas of other kinds allow null.
    read = {name: value for name, value in data.value.items() if name != "status"}
    if custom.value is not None:
        read = _without_nulls(read)
    mistakes: dict[SchemaMistake, None] = {}
    # A definition among the objects may be wrong itself.
    with suppress(TypeError, UnknownType):
        for error in validator.iter_errors(read) if validator else ():
            mistakes |= dict.fromkeys(_described(error))
    return list(mistakes)


def _without_nulls(value: Any) -> Any:
    """The value without the fields that have none."""
    if isinstance(value, dict):
        return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


def _validator_of(
    document: LocatedDocument, custom: dict[str, Any] | None, version: str
) -> Draft202012Validator | None:
    if custom is not None:
        return Draft202012Validator(custom, registry=_definitions(version))
    return _validator(document.kind, document.api_version, version)


def served(kind: str, version: str) -> list[str]:
    """The API versions in which Kubernetes `version` serves a kind."""
    apis = []
    for file in _folder(version).iterdir():
        if re.fullmatch(rf"{re.escape(kind.lower())}(-[a-z]+)?-v\d\w*\.json", file.name):
            kinds = json.loads(file.read_text(encoding="utf-8")).get("x-kubernetes-group-version-kind", [])
            apis += [api for name, api in map(_api, kinds) if name == kind]
    return sorted(apis)


def is_built_in(document: LocatedDocument) -> bool:
    """Whether the object's API group is one of Kubernetes itself."""
    return _BUILT_IN.fullmatch(document.group) is not None


def is_shipped(document: LocatedDocument) -> bool:
    """Whether the object is a custom resource whose schema comes with Marina."""
    return (document.kind, document.api_version) in _shipped()


@cache
def _folder(version: str) -> Traversable:
    try:
        root = files("kubernetes_validate") / "kubernetes-json-schema"
    except ModuleNotFoundError as err:
        raise ToolMissing("the schemas of Kubernetes are not installed", hint=install_command("deploy")) from err
    folder = root / f"v{version}.0-local-strict"
    if not folder.is_dir():
        matches = (re.fullmatch(r"v(1\.\d+)\.0-local-strict", folder.name) for folder in root.iterdir())
        raise InputError(f"`--kubernetes`: got `{version}`, allowed: {listed(match[1] for match in matches if match)}")
    return folder


@cache
def _definitions(version: str) -> Registry[Any]:
    text = (_folder(version) / "_definitions.json").read_text(encoding="utf-8")
    resource = Resource.from_contents(json.loads(text))
    return resource @ Registry()


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


def _defined(document: LocatedDocument) -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
    """The schemas in a CustomResourceDefinition, by kind and API version."""
    spec = document.root.at("spec")
    if document.kind != "CustomResourceDefinition":
        return
    for version in spec.at("versions").items():
        schema = version.at("schema", "openAPIV3Schema").value
        # The rule `schema` reports a definition that is wrong itself.
        with suppress(AttributeError, TypeError):
            if isinstance(schema, dict) and version.at("served").value is not False:
                api = f"{spec.at('group').text}/{version.at('name').text}"
                yield (spec.at("names", "kind").text, api), _strict(schema, top=True)


def _strict(schema: Any, *, top: bool = False) -> Any:
    """A structural schema as JSON Schema that forbids unnamed fields, as the API server does."""
    if not isinstance(schema, dict):
        return schema
    strict: dict[str, Any] = {
        key: schema[key]
        for key in ("enum", "maxItems", "maxLength", "maximum", "minItems", "minLength", "minimum", "type")
        if key in schema
    }
    if "properties" in schema:
        fields = schema["properties"]
        strict["properties"] = {name: _strict(part) for name, part in fields.items()}
        # The API server fills in defaults first, and then a field may be null.
        optional = {name for name, part in fields.items() if "default" in part or part.get("nullable")}
        strict["required"] = [name for name in schema.get("required", []) if name not in optional]
        strict["additionalProperties"] = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
        if top:
            strict["properties"] |= {"apiVersion": {"type": "string"}, "kind": {"type": "string"}}
            strict["properties"]["metadata"] = {"type": "object"}
    elif "additionalProperties" in schema:
        strict["additionalProperties"] = _strict(schema["additionalProperties"])
    if "items" in schema:
        strict["items"] = _strict(schema["items"])
    if schema.get("x-kubernetes-int-or-string"):
        strict["type"] = ["integer", "string"]
    return strict


@cache
def _validator(kind: str, api_version: str, version: str) -> Draft202012Validator | None:
    # The file of rbac.authorization.k8s.io/v1 is called rbac-v1.
    short = re.sub(r"^([^./]*)(\.[^/]*)?/", r"\1-", api_version)
    try:
        schema = json.loads((_folder(version) / f"{kind.lower()}-{short}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        # Nobody's kind: there is no such file, or there cannot be one.
        return None
    if not any(_api(known) == (kind, api_version) for known in schema.get("x-kubernetes-group-version-kind", [])):
        return None
    return Draft202012Validator(schema, registry=_definitions(version))


def _api(known: dict[str, str]) -> tuple[str, str]:
    return known["kind"], f"{known['group']}/{known['version']}".removeprefix("/")


def _described(error: ValidationError) -> Iterator[SchemaMistake]:
    path: Location = tuple(error.absolute_path)
    instance: Any = error.instance
    wanted: Any = error.validator_value
    schema: Any = error.schema
    got = _shown(instance)
    if error.validator == "additionalProperties" and isinstance(instance, dict):
        known = schema.get("properties", {})
        for name in sorted(instance.keys() - known.keys()):
            near = nearest(name, known)
            text = "unknown field" + (f", did you mean `{near}`?" if near else "")
            yield SchemaMistake((*path, name), text, near and f"write `{near}`")
    elif error.validator == "required":
        missing = [name for name in wanted if name not in instance]
        for name in missing:
            yield SchemaMistake((*path, name), "missing, but required", f"add `{name}:`")
    elif error.validator == "enum":
        yield SchemaMistake(path, f"got {got}, allowed: {listed(wanted)}")
    elif error.validator == "type":
        yield SchemaMistake(path, f"got {got}, allowed: {_kinds(wanted)}")
    elif error.validator == "oneOf" and all("type" in branch for branch in wanted):
        types = [name for branch in wanted for name in _listed(branch["type"]) if name != "null"]
        yield SchemaMistake(path, f"got {got}, allowed: {_kinds(types)}")
    else:
        yield SchemaMistake(path, f"got {got}, allowed: {_wanted(error)}")


def _wanted(error: ValidationError) -> str:
    value: Any = error.validator_value
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
    return words.get(str(error.validator), f"what `{error.validator}` in the schema allows")


def _kinds(types: str | Iterable[str]) -> str:
    return " or ".join(_TYPES[name] for name in _listed(types) if name != "null")


def _listed(types: str | Iterable[str]) -> list[str]:
    return [types] if isinstance(types, str) else list(types)


def _shown(value: object) -> str:
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else f"a list of {len(value)}"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return f"`{text if len(text) <= 60 else text[:57] + '…'}`"
