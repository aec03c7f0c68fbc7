"""Writes the manifests to a folder, which is replaced as a whole, and beside it the files for a cluster's
Prometheus."""

import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from marina.config.locks import locked
from marina.config.record import write_text
from marina.k8s.manifests.notes import DerivedNumber, Note, derived_numbers, notes
from marina.k8s.manifests.objects import dashboard_text, render_objects, rule_groups
from marina.k8s.manifests.plan import Plan
from marina.k8s.manifests.yaml_text import Files, to_yaml
from marina.k8s.monitoring import adapter_values

Layout = Literal["files", "single"]
_FOLDER = "manifests"
ORIGIN = "Made by `marina manifests` from the spec: change that, not this file."


@dataclass(frozen=True)
class WrittenFiles:
    """The files that were written, with the notes and derived numbers to show."""

    folder: Path
    files: dict[str, list[str]]
    """The objects in each file as `Kind name`, by path relative to the folder."""
    image: str
    notes: list[Note]
    derived: list[DerivedNumber]

    def to_data(self) -> dict[str, Any]:
        parts = {"notes": [asdict(note) for note in self.notes], "derived": [asdict(number) for number in self.derived]}
        return {"folder": str(self.folder), "files": self.files, "image": self.image, **parts}


def write_manifests(plan: Plan, out: Path, layout: Layout = "files") -> WrittenFiles:
    """Writes `manifests/`, or the folder of the plan's engine, and `prometheus/` into a build folder. The first is
    replaced as a whole."""
    folder = manifests_folder(plan, out)
    replace_folder(folder, manifest_texts(plan, layout))
    write_text(out / "prometheus/adapter-values.yaml", to_yaml([adapter_values(plan.spec)], [ORIGIN]))
    write_text(out / "prometheus/rules.yaml", to_yaml([{"groups": rule_groups(plan)}], [ORIGIN]))
    write_text(out / "prometheus/dashboard.json", dashboard_text(plan))
    return describe_files(plan, folder, _files(plan, layout))


def manifests_folder(plan: Plan, out: Path) -> Path:
    """Where the objects of a plan are written, in its build folder."""
    return out / (plan.engine or _FOLDER)


def describe_files(plan: Plan, folder: Path, files: Files) -> WrittenFiles:
    """The record of a folder to which these objects were written."""
    objects = {
        name: [f"{document['kind']} {document['metadata']['name']}" for document in documents]
        for name, documents in files.items()
    }
    return WrittenFiles(folder, objects, plan.image, notes(plan), derived_numbers(plan))


def manifest_texts(plan: Plan, layout: Layout) -> dict[str, str]:
    """The text of every file in `manifests/`, including the kustomizations."""
    all_notes, files = notes(plan), _files(plan, layout)
    texts = {name: to_yaml(documents, _comment(name, all_notes, layout)) for name, documents in files.items()}
    return texts | _kustomizations(files)


def _files(plan: Plan, layout: Layout) -> Files:
    return render_objects(plan) if layout == "files" else _merged(render_objects(plan))


def _merged(files: Files) -> Files:
    """The same objects with one file in each folder."""
    merged: Files = {}
    for name, documents in files.items():
        merged.setdefault(str(Path(name).parent / "all.yaml"), []).extend(documents)
    return merged


def _comment(name: str, all_notes: list[Note], layout: Layout) -> list[str]:
    """The comment lines of one file: where it comes from, and the notes about the objects in it."""
    if layout == "single":
        notes_here = [note for note in all_notes if Path(note.file).parent == Path(name).parent]
    else:
        notes_here = [note for note in all_notes if note.file == name]
    return [ORIGIN, *(f"Note: {note.text}" for note in notes_here)]


def _kustomizations(files: Files) -> dict[str, str]:
    folders: dict[str, list[str]] = {}
    for name in files:
        folders.setdefault(str(Path(name).parent), []).append(Path(name).name)
    return {
        str(Path(folder) / "Kustomization"): to_yaml(
            [{"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": names}], [ORIGIN]
        )
        for folder, names in folders.items()
    }


def replace_folder(folder: Path, texts: dict[str, str]) -> None:
    """Writes the texts to a temporary folder and moves it into place, so that nobody applies an incomplete one."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary:
        fresh, old = Path(temporary) / "fresh", Path(temporary) / "old"
        for name, text in texts.items():
            file = fresh / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        with locked(folder.parent):
            if folder.exists():
                folder.rename(old)
            fresh.rename(folder)
