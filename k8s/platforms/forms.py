"""The forms in which a plan is written, and what differs between a folder and a form."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import Any

from config.errors import InputError
from config.progress import Progress
from k8s.manifests import (
    ORIGIN,
    Plan,
    Written,
    manifest_texts,
    render,
    replace_folder,
    to_yaml,
    write_manifests,
    written,
)
from k8s.platforms.chart import chart_texts
from k8s.platforms.kserve import kserve_files


@dataclass(frozen=True)
class Difference:
    """One file that is not what the spec renders."""

    file: str
    diff: str

    def to_data(self) -> dict[str, Any]:
        """As JSON."""
        return {"file": self.file, "diff": self.diff}


def write_form(plan: Plan, out: Path, form: str, progress: Progress) -> Written:
    """Writes a form under a build folder: `manifests/`, `chart/` or `kserve/`, which is replaced as a whole."""
    if form not in ("helm", "kserve"):
        return write_manifests(plan, out, "single" if form == "single" else "files")
    folder = out / {"helm": "chart", "kserve": "kserve"}[form]
    replace_folder(folder, _texts(plan, out, form, progress))
    return written(plan, folder, render(plan) if form == "helm" else kserve_files(plan))


def differences(plan: Plan, out: Path, form: str, folder: Path, progress: Progress) -> list[Difference]:
    """How the files of a folder differ from what is rendered now. Files in it that Marina did not write are
    somebody else's."""
    if not folder.is_dir():
        hint = f"marina manifests {plan.spec.file} --format {form}"
        raise InputError(f"`--check`: {folder}: no such folder", hint=hint)
    texts = _texts(plan, out, form, progress)
    committed = {str(file.relative_to(folder)): file for file in sorted(folder.rglob("*")) if file.is_file()}
    there = {name: file.read_text(encoding="utf-8", errors="replace") for name, file in committed.items()}
    ours = {name: text for name, text in there.items() if name in texts or ORIGIN in "".join(text.splitlines()[:2])}
    differing = []
    for name in sorted({*texts, *ours}):
        old, new = ours.get(name, ""), texts.get(name, "")
        if old != new:
            lines = unified_diff(
                old.splitlines(), new.splitlines(), str(folder / name), f"{name} as rendered", lineterm=""
            )
            differing.append(Difference(name, "\n".join(lines)))
    return differing


def _texts(plan: Plan, out: Path, form: str, progress: Progress) -> dict[str, str]:
    if form == "helm":
        return chart_texts(plan, out / "model.mar", progress)
    if form == "kserve":
        return {name: to_yaml(documents, [ORIGIN]) for name, documents in kserve_files(plan).items()}
    return manifest_texts(plan, "single" if form == "single" else "files")
