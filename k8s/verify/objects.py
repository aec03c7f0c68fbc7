"""The objects of one spec, with the file and line of every field, and the parts that rules look at. What is missing or
of another type reads as empty: a patch or an edit may have written anything anywhere."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from marina.config.errors import InputError, Problem, SpecError
from marina.config.yaml_lines import Location, read_documents
from marina.k8s.manifests import SUPPORTED_VERSIONS, Plan, judge_name, render_objects
from marina.k8s.monitoring import SERVER_CONTAINER

_SUFFIXES = {".json", ".yaml", ".yml"}


@dataclass(frozen=True)
class Place:
    """One place in a document."""

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
    def texts(self) -> dict[str, str]:
        """The entries of a mapping whose values are text, such as labels and annotations."""
        table = self.value if isinstance(self.value, dict) else {}
        return {name: value for name, value in table.items() if isinstance(value, str)}

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
    def line(self) -> int:
        """The line of the field, or of the nearest enclosing field that is written; 0 if it was never in a file."""
        lines = self.document.lines
        return next((lines[self.path[:end]] for end in range(len(self.path), -1, -1) if self.path[:end] in lines), 0)


@dataclass(frozen=True)
class LocatedDocument:
    """One object; `lines` is empty if it was never in a file."""

    data: dict[str, Any]
    file: str
    lines: Mapping[Location, int] = field(default_factory=dict)

    @property
    def root(self) -> Place:
        return Place(self, (), self.data)

    @cached_property
    def kind(self) -> str:
        return self.root.at("kind").text

    @cached_property
    def name(self) -> str:
        return self.root.at("metadata", "name").text

    @property
    def reference(self) -> str:
        """`Kind/name`, as kubectl prints it."""
        return f"{self.kind}/{self.name or '?'}"


def locate_rendered(files: Mapping[str, Iterable[dict[str, Any]]]) -> list[LocatedDocument]:
    """The rendered objects of each file, which need not exist."""
    return [LocatedDocument(data, name) for name, objects in files.items() for data in objects]


def read_folder(folder: Path) -> list[LocatedDocument]:
    """Every object in the files below a folder that Marina wrote. Raises SpecError with all that cannot be read."""
    documents: list[LocatedDocument] = []
    problems: list[Problem] = []
    for file in sorted(file for file in folder.rglob("*") if file.suffix.lower() in _SUFFIXES and file.is_file()):
        try:
            for data, lines, wrong in read_documents(file.read_text(encoding="utf-8-sig"), str(file)):
                problems += wrong
                documents.append(LocatedDocument(data if isinstance(data, dict) else {}, str(file), lines))
        except SpecError as err:
            problems += err.problems
        except (OSError, UnicodeDecodeError) as err:
            problems.append(Problem(str(file), 1, "", f"not readable: {err}"))
    for document in documents:
        if not (document.kind and document.root.at("apiVersion").text):
            text = "not a Kubernetes object: `apiVersion` or `kind` missing"
            problems.append(Problem(document.file, document.lines[()], "", text))
    if problems:
        raise SpecError(problems)
    if not documents:
        raise InputError(f"{folder}: no objects in it", hint="`marina manifests SPEC` writes them")
    return documents


@dataclass(frozen=True)
class Objects:
    """All objects of a plan: as rendered, or as they are in the folder that was written."""

    documents: tuple[LocatedDocument, ...]
    plan: Plan
    versions: tuple[str, ...] = SUPPORTED_VERSIONS
    """The Kubernetes versions to check against."""
    written: bool = False
    """Whether they were read from the folder, where anybody may have changed them since."""

    def of(self, *kinds: str) -> list[LocatedDocument]:
        """The documents of these kinds, without those of the judge, whose pods are others."""
        judge = judge_name(self.plan) if self.plan.engine else ""
        return [document for document in self.documents if document.kind in kinds and document.name != judge]

    @cached_property
    def rendered(self) -> list[LocatedDocument]:
        """The objects as the plan renders them now."""
        return locate_rendered(render_objects(self.plan))

    @cached_property
    def deployment(self) -> Place:
        """The Deployment with the server, or the Rollout; without anything in it if somebody deleted it from the
        folder."""
        found = [document for document in self.of(self.plan.workload.kind) if document.name == self.plan.name]
        return (found or [LocatedDocument({}, "")])[0].root

    @property
    def pod(self) -> Place:
        return self.deployment.at("spec", "template", "spec")

    @property
    def labels(self) -> dict[str, str]:
        """The labels of the pods."""
        return self.deployment.at("spec", "template", "metadata", "labels").texts

    @property
    def annotations(self) -> Place:
        """The annotations of the pods."""
        return self.deployment.at("spec", "template", "metadata", "annotations")

    @property
    def containers(self) -> list[Place]:
        """All containers of the pods, init containers included."""
        return [*self.pod.at("initContainers").items(), *self.pod.at("containers").items()]

    @cached_property
    def server(self) -> Place:
        """The server's container; without anything in it if it is not there."""
        named = (each for each in self.pod.at("containers").items() if each.at("name").text == SERVER_CONTAINER)
        return next(named, Place(self.pod.document, (), None))

    @property
    def scalers(self) -> list[LocatedDocument]:
        return self.of("HorizontalPodAutoscaler", "ScaledObject")
