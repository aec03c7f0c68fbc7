"""Kubernetes objects as anybody may have written them, with the file and line of every field."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from config.errors import InputError, Problem, SpecError
from config.yaml_lines import Location, read_documents

_SUFFIXES = {".json", ".yaml", ".yml"}
# Instructions for kustomize and Helm, not objects of a cluster.
_NOT_APPLIED = {"kustomization.yaml", "kustomization.yml", "Chart.yaml", "values.yaml"}
_HINT = "kubectl kustomize DIR > all.yaml, or helm template CHART > all.yaml, gives files of objects"


@dataclass(frozen=True)
class Place:
    """One place of a document. What is missing or of another type reads as nothing, so that rules need not ask."""

    document: LocatedDocument
    path: Location
    value: Any

    def at(self, *keys: str | int) -> Place:
        """The place below it, there or not."""
        value = self.value
        for key in keys:
            if isinstance(value, dict) and isinstance(key, str):
                value = value.get(key)
            elif isinstance(value, list) and isinstance(key, int) and key < len(value):
                value = value[key]
            else:
                value = None
        return Place(self.document, (*self.path, *keys), value)

    @property
    def given(self) -> bool:
        """Whether anything is written here."""
        return self.value is not None

    @property
    def text(self) -> str:
        """The value if it is text, else nothing."""
        return self.value if isinstance(self.value, str) else ""

    @property
    def number(self) -> int | None:
        """The value if it is a whole number."""
        return self.value if isinstance(self.value, int) and not isinstance(self.value, bool) else None

    @property
    def table(self) -> dict[str, Any]:
        """The value if it is a mapping, else an empty one."""
        return self.value if isinstance(self.value, dict) else {}

    @property
    def texts(self) -> dict[str, str]:
        """The entries of a mapping whose values are text, as labels and annotations are."""
        return {name: value for name, value in self.table.items() if isinstance(value, str)}

    def items(self) -> list[Place]:
        """The places of a list's items."""
        return [self.at(index) for index in range(len(self.value))] if isinstance(self.value, list) else []

    def all(self, path: str) -> list[Place]:
        """Every written place of a path such as `ports[].protocol`."""
        nodes = [self]
        for part in path.split("."):
            nodes = [node.at(part.removesuffix("[]")) for node in nodes]
            if part.endswith("[]"):
                nodes = [item for node in nodes for item in node.items()]
        return [node for node in nodes if node.given]

    def entries(self) -> Iterator[tuple[str, Place]]:
        """The places of a mapping's values by name."""
        return ((name, self.at(name)) for name in self.table)

    @property
    def field(self) -> str:
        """The path as `kubectl explain` writes it, with the index of list items."""
        return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in self.path).removeprefix(".")

    @property
    def line(self) -> int | None:
        """The line of the field, or of the nearest one around it that is written."""
        lines = self.document.lines
        return next((lines[self.path[:end]] for end in range(len(self.path), -1, -1) if self.path[:end] in lines), None)


@dataclass(frozen=True)
class LocatedDocument:
    """One object; `lines` is empty when it was never a file."""

    data: dict[str, Any]
    file: str
    lines: Mapping[Location, int] = field(default_factory=dict)

    @property
    def root(self) -> Place:
        return Place(self, (), self.data)

    @property
    def kind(self) -> str:
        return self.root.at("kind").text

    @property
    def api_version(self) -> str:
        return self.root.at("apiVersion").text

    @property
    def group(self) -> str:
        """The API group; empty for the core."""
        return self.api_version.rpartition("/")[0]

    @property
    def name(self) -> str:
        return self.root.at("metadata", "name").text

    @property
    def namespace(self) -> str:
        return self.root.at("metadata", "namespace").text

    @property
    def reference(self) -> str:
        """`Kind/name`, as kubectl prints it."""
        if not self.kind:
            return "prometheus-adapter"
        return f"{self.kind}/{self.name or '?'}"


def rendered(files: Mapping[str, Iterable[dict[str, Any]]]) -> list[LocatedDocument]:
    """Objects that were never written, by file name."""
    return [LocatedDocument(data, name) for name, objects in files.items() for data in objects]


def read_folder(folder: Path) -> list[LocatedDocument]:
    """Every object in the YAML and JSON files below a folder; InputError with everything that is not readable."""
    if not folder.is_dir():
        fault = "no such folder" if not folder.exists() else "a file, and a folder is needed"
        raise InputError(f"{folder}: {fault}", hint=f"marina verify --dir {folder.parent}")
    files = sorted(
        file
        for file in folder.rglob("*")
        if file.suffix.lower() in _SUFFIXES
        and file.is_file()
        and file.name not in _NOT_APPLIED
        and not any(part.startswith(".") for part in file.relative_to(folder).parts)
    )
    documents: list[LocatedDocument] = []
    problems: list[Problem] = []
    for file in files:
        try:
            documents += read_file(file)
        except SpecError as err:
            problems += err.problems
    if problems:
        raise SpecError(problems)
    if not documents:
        raise InputError(f"{folder}: no object in it, allowed: files that end in .json, .yaml or .yml", hint=_HINT)
    return documents


def read_file(file: Path) -> list[LocatedDocument]:
    """The objects of one file, the items of a `List` each for itself."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as err:
        raise SpecError([Problem(str(file), 1, "", "not readable: not UTF-8")]) from err
    except OSError as err:
        raise InputError(f"{file}: not readable: {err.strerror}") from err
    documents: list[LocatedDocument] = []
    problems: list[Problem] = []
    # JSON is YAML, and read as such it has lines; the tabs that YAML forbids are never inside its texts.
    for data, lines, wrong in read_documents(text.expandtabs(2) if file.suffix == ".json" else text, str(file)):
        problems += wrong
        document = LocatedDocument(data if isinstance(data, dict) else {}, str(file), lines)
        if document.kind and document.api_version:
            documents += _items(document) if document.kind.endswith("List") else [document]
        elif is_settings(document):
            documents.append(document)
        else:
            missing = "`kind`" if document.api_version else "`apiVersion`" if document.kind else "`apiVersion`, `kind`"
            problems.append(Problem(str(file), lines[()], "", f"not a Kubernetes object: {missing} missing", _HINT))
    if problems:
        raise SpecError(problems)
    return documents


def _items(document: LocatedDocument) -> list[LocatedDocument]:
    documents = []
    for item in document.root.at("items").items():
        depth = len(item.path)
        below = {path[depth:]: line for path, line in document.lines.items() if path[:depth] == item.path}
        documents.append(LocatedDocument(item.table, document.file, below))
    return documents or [document]


def is_settings(document: LocatedDocument) -> bool:
    """Whether this is a file of prometheus-adapter's settings, which is not an object of a cluster."""
    return not document.kind and bool(adapter_rules(document))


def adapter_rules(document: LocatedDocument) -> list[Place]:
    """The rules in a file of prometheus-adapter's settings."""
    rules = document.root.at("rules")
    return [*rules.at("custom").items(), *rules.at("external").items()]
