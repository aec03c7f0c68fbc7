"""Manifests on disk: a folder that is replaced as a whole, and beside it what a cluster's Prometheus is given."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from config.record import write_text
from k8s.manifests.notes import Derived, Note, derived, notes
from k8s.manifests.objects import Files, dashboard_text, render, rule_groups
from k8s.manifests.plan import Plan
from k8s.manifests.yaml_text import to_yaml
from k8s.monitoring import adapter_values

Form = Literal["files", "single"]
MANIFESTS_FOLDER = "manifests"
ORIGIN = "Made by `marina manifests` from the spec: change that, not this file."


@dataclass(frozen=True)
class Written:
    """What was written where, and what to know about it."""

    folder: Path
    files: dict[str, list[str]]
    """By file, relative to the folder: its objects as `Kind name`."""
    image: str
    notes: list[Note]
    derived: list[Derived]

    def to_data(self) -> dict[str, Any]:
        """As JSON."""
        parts = {"notes": [asdict(note) for note in self.notes], "derived": [asdict(number) for number in self.derived]}
        return {"folder": str(self.folder), "files": self.files, "image": self.image, **parts}


def write_manifests(plan: Plan, out: Path, form: Form = "files") -> Written:
    """Writes `manifests/` and `prometheus/` under a build folder; what was there before is replaced."""
    replace_folder(out / MANIFESTS_FOLDER, manifest_texts(plan, form))
    write_text(out / "prometheus/adapter-values.yaml", to_yaml([adapter_values(plan.spec)], [ORIGIN]))
    write_text(out / "prometheus/rules.yaml", to_yaml([{"groups": rule_groups(plan)}], [ORIGIN]))
    write_text(out / "prometheus/dashboard.json", dashboard_text(plan))
    return written(plan, out / MANIFESTS_FOLDER, _files(plan, form))


def written(plan: Plan, folder: Path, files: Files) -> Written:
    """What is said about a folder of objects."""
    named = {
        name: [f"{document['kind']} {document['metadata']['name']}" for document in documents]
        for name, documents in files.items()
    }
    return Written(folder=folder, files=named, image=plan.image, notes=notes(plan), derived=derived(plan))


def manifest_texts(plan: Plan, form: Form) -> dict[str, str]:
    """Every file of `manifests/`, with its kustomizations."""
    known, files = notes(plan), _files(plan, form)
    texts = {name: to_yaml(documents, _comment(name, known, form)) for name, documents in files.items()}
    return texts | _kustomizations(files)


def _files(plan: Plan, form: Form) -> Files:
    return render(plan) if form == "files" else _merged(render(plan))


def _merged(files: Files) -> Files:
    """One file in each folder."""
    merged: Files = {}
    for name, documents in files.items():
        merged.setdefault(str(Path(name).parent / "all.yaml"), []).extend(documents)
    return merged


def _comment(name: str, known: list[Note], form: Form) -> list[str]:
    place = Path(name)
    shown = [Path(note.file).parent / place.name if form == "single" else Path(note.file) for note in known]
    about = [note for note, file in zip(known, shown, strict=True) if file == place]
    return [ORIGIN, *(f"Note: {note.text}" for note in about)]


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
    """Writes to a temporary place and moves it, so that nobody applies half of it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary:
        fresh, old = Path(temporary) / "fresh", Path(temporary) / "old"
        for name, text in texts.items():
            file = fresh / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        if folder.exists():
            folder.rename(old)
        shutil.move(fresh, folder)
