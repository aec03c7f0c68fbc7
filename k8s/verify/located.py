"""Kubernetes objects from any author's files, with the file and line of every field."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from os.path import normpath
from pathlib import Path
from shlex import quote
from typing import Any, TypeVar

from marina.config.errors import InputError, Problem, SpecError
from marina.config.yaml_lines import Location, read_documents
from marina.k8s.verify.kustomize import KUSTOMIZATIONS, adds_labels, kustomize_parts, overlays_below

_SUFFIXES = {".json", ".yaml", ".yml"}
# Files for kustomize and Helm, which hold no objects.
_NOT_APPLIED = KUSTOMIZATIONS | {"Chart.yaml", "values.yaml"}
# Between two objects of one JSON file. Inside of an object, a comma would be there.
_NEXT_OBJECT = re.compile(r"(?<=\})(\s*\n)[ ]*(?=\{)")
# YAML allows tabs at the end of a line, but the parser does not.
_TABS = re.compile(r"\t+(?=\r?$)", re.MULTILINE)
_Item = TypeVar("_Item")
_HINT = "`kubectl kustomize DIR > all.yaml` or `helm template CHART > all.yaml` writes a file of objects"


@dataclass(frozen=True)
class Place:
    """One place in a document. A missing value, or one of another type, reads as empty, so that rules need not check
    for it."""

    document: "LocatedDocument"
    path: Location
    value: Any

    def at(self, *keys: str | int) -> "Place":
        """The place below this one; its value is None if nothing is written there."""
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
        """Whether a value is written here."""
        return self.value is not None

    @property
    def text(self) -> str:
        """The value if it is text, else an empty text."""
        return self.value if isinstance(self.value, str) else ""

    @property
    def number(self) -> int | None:
        """The value if it is a whole number that Kubernetes can store, else None."""
        whole = isinstance(self.value, int) and not isinstance(self.value, bool)
        return self.value if whole and abs(self.value) < 2**63 else None

    @property
    def table(self) -> dict[str, Any]:
        """The value if it is a mapping, else an empty one."""
        return self.value if isinstance(self.value, dict) else {}

    @property
    def texts(self) -> dict[str, str]:
        """The entries of a mapping whose values are text, such as labels and annotations."""
        return {name: value for name, value in self.table.items() if isinstance(value, str)}

    def items(self) -> list["Place"]:
        """The places of a list's items."""
        return [self.at(index) for index in range(len(self.value))] if isinstance(self.value, list) else []

    def all(self, path: str) -> list["Place"]:
        """Every place with a value that a path such as `ports[].protocol` leads to."""
        nodes = [self]
        for part in path.split("."):
            nodes = [node.at(part.removesuffix("[]")) for node in nodes]
            if part.endswith("[]"):
                nodes = [item for node in nodes for item in node.items()]
        return [node for node in nodes if node.given]

    @property
    def field(self) -> str:
        """The path as `kubectl explain` writes it, with the indices of list items."""
        return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in self.path).removeprefix(".")

    @property
    def line(self) -> int | None:
        """The line of the field, or of the nearest enclosing field that is written; None if it was never in a file."""
        lines = self.document.lines
        return next((lines[self.path[:end]] for end in range(len(self.path), -1, -1) if self.path[:end] in lines), None)


@dataclass(frozen=True)
class LocatedDocument:
    """One object; `lines` is empty if it was never in a file."""

    data: dict[str, Any]
    file: str
    lines: Mapping[Location, int] = field(default_factory=dict)
    overlays: frozenset[str] = frozenset()
    """The kustomizations that it is a part of, without those that another one names; empty: it may be in any."""
    gets_labels: bool = False
    """Whether a kustomization may add labels, also to selectors."""

    @property
    def root(self) -> Place:
        return Place(self, (), self.data)

    def is_beside(self, other: "LocatedDocument") -> bool:
        """Whether the files are in two folders of which none is in the other, nor an overlay: these may be for two
        clusters."""
        first, second = sorted(Path(document.file).parent for document in (self, other))
        return not (second.is_relative_to(first) or self.overlays or other.overlays)

    def may_meet(self, other: "LocatedDocument") -> bool:
        """Whether two objects may be in one namespace; one that names none may be in any."""
        return not (self.namespace and other.namespace) or self.namespace == other.namespace

    def is_applied_with(self, other: "LocatedDocument") -> bool:
        """Whether a kustomization may have both; two of which none names the other may be for two clusters."""
        return not (self.overlays and other.overlays and self.overlays.isdisjoint(other.overlays))

    @cached_property
    def kind(self) -> str:
        return self.root.at("kind").text

    @cached_property
    def api_version(self) -> str:
        return self.root.at("apiVersion").text

    @property
    def group(self) -> str:
        """The API group; empty for the core group."""
        return self.api_version.rpartition("/")[0]

    @cached_property
    def name(self) -> str:
        return self.root.at("metadata", "name").text

    @cached_property
    def namespace(self) -> str:
        return self.root.at("metadata", "namespace").text

    @property
    def reference(self) -> str:
        """`Kind/name`, as kubectl prints it."""
        if not self.kind:
            return "prometheus-adapter"
        return f"{self.kind}/{self.name or '?'}"


def nearest(candidates: Iterable[tuple[LocatedDocument, _Item]], near: LocatedDocument) -> list[_Item]:
    """What may be in the namespace of `near`: what is applied with it, or else what another kustomization applies."""
    met = [(document, item) for document, item in candidates if document.may_meet(near)]
    return [item for document, item in met if document.is_applied_with(near)] or [item for _, item in met]


def locate_rendered(files: Mapping[str, Iterable[dict[str, Any]]]) -> list[LocatedDocument]:
    """The rendered objects of each file, which need not exist."""
    return [LocatedDocument(data, name) for name, objects in files.items() for data in objects]


def read_objects(folder: Path) -> list[LocatedDocument]:
    """Every object in the YAML and JSON files below a folder, without its `kustomize_parts`. Raises SpecError with all
    that cannot be read."""
    if not folder.is_dir():
        fault = "a file, but a folder is needed" if folder.exists() else "no such folder"
        raise InputError(f"{folder}: {fault}", hint=f"marina verify --dir {quote(str(folder.parent))}")
    parts, overlays, labelled = kustomize_parts(folder), overlays_below(folder), adds_labels(folder)
    files = sorted(
        file
        for file in folder.rglob("*")
        if file.suffix.lower() in _SUFFIXES
        and file.is_file()
        and file.name not in _NOT_APPLIED
        and normpath(file) not in parts
        and not any(part.startswith(".") for part in file.relative_to(folder).parts)
    )
    documents: list[LocatedDocument] = []
    problems: list[Problem] = []
    for file in files:
        try:
            parts_of = next((overlays[path] for path in map(normpath, file.parents) if path in overlays), frozenset())
            documents += [
                replace(document, overlays=parts_of, gets_labels=labelled) for document in read_object_file(file)
            ]
        except SpecError as err:
            problems += err.problems
    if problems:
        raise SpecError(problems)
    if not documents:
        raise InputError(f"{folder}: no objects in it, allowed: files that end in .json, .yaml or .yml", hint=_HINT)
    return documents


def read_object_file(file: Path) -> list[LocatedDocument]:
    """The objects of one file; each item of a `List` is one."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as err:
        raise SpecError([Problem(str(file), 1, "", "not readable: not UTF-8")]) from err
    except OSError as err:
        raise InputError(f"{file}: not readable: {err.strerror}") from err
    documents: list[LocatedDocument] = []
    problems: list[Problem] = []
    # JSON is read as YAML to get line numbers. YAML forbids its tabs, and JSON has none inside its strings.
    if file.suffix.lower() == ".json":
        text = _NEXT_OBJECT.sub(r"\1--- ", text.expandtabs(2))
    for data, lines, wrong in read_documents(_TABS.sub("", text), str(file)):
        problems += wrong
        for document in _flattened(LocatedDocument(data if isinstance(data, dict) else {}, str(file), lines)):
            if (document.kind and document.api_version) or is_adapter_settings(document):
                documents.append(document)
                continue
            missing = "`kind`" if document.api_version else "`apiVersion`" if document.kind else "`apiVersion`, `kind`"
            line = document.lines[()]
            problems.append(Problem(str(file), line, "", f"not a Kubernetes object: {missing} missing", _HINT))
    if problems:
        raise SpecError(problems)
    return documents


def _flattened(document: LocatedDocument) -> Iterator[LocatedDocument]:
    """The document, or the items of a list. In a list of one kind, such as a ConfigMapList, they need not repeat it."""
    items = document.root.at("items").value
    if not document.kind.endswith("List") or "items" not in document.data or not isinstance(items, list | None):
        yield document
        return
    lines: dict[str | int, dict[Location, int]] = defaultdict(dict)
    for path, line in document.lines.items():
        if path[:1] == ("items",) and len(path) > 1:
            lines[path[1]][path[2:]] = line
    own = {"apiVersion": document.api_version, "kind": document.kind.removesuffix("List")}
    for index, item in enumerate(items or []):
        data = item if isinstance(item, dict) else {}
        yield from _flattened(
            LocatedDocument(own | data if own["kind"] and data else data, document.file, lines[index])
        )


def is_adapter_settings(document: LocatedDocument) -> bool:
    """Whether a document is a file of prometheus-adapter's settings, not an object of a cluster."""
    return not document.kind and bool(settings_rules(document))


def settings_rules(document: LocatedDocument) -> list[Place]:
    """The rules in prometheus-adapter's settings."""
    rules = document.root.at("rules")
    return [*rules.at("custom").items(), *rules.at("external").items()]
