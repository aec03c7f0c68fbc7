"""The formats that `marina manifests` writes, and the comparison of a committed folder with what the spec renders."""

from difflib import unified_diff
from pathlib import Path

from marina.config.errors import InputError
from marina.config.progress import Progress
from marina.k8s.manifests import (
    ORIGIN,
    Plan,
    WrittenFiles,
    describe_files,
    load_image,
    manifest_texts,
    render_objects,
    replace_folder,
    to_yaml,
    with_engine,
    write_manifests,
)
from marina.k8s.monitoring import WORKLOADS
from marina.k8s.platforms.chart import chart_texts
from marina.k8s.platforms.kserve import kserve_files


def write_format(plan: Plan, out: Path, output_format: str, progress: Progress) -> WrittenFiles:
    """Writes one format into a build folder, as `manifests/`, `chart/`, or under its own name. An existing folder of
    that name is replaced."""
    plan = plan_for(plan, out, output_format)
    if output_format not in ("helm", "kserve"):
        return write_manifests(plan, out, "single" if output_format == "single" else "files")
    folder = out / {"helm": "chart", "kserve": "kserve"}[output_format]
    replace_folder(folder, _texts(plan, output_format, progress))
    return describe_files(plan, folder, render_objects(plan) if output_format == "helm" else kserve_files(plan))


def plan_for(plan: Plan, out: Path, output_format: str) -> Plan:
    """The plan as this format needs it; `out` is the build folder. Raises InputError if the format cannot do what the
    spec wants."""
    engines = {str(engine): engine for engine in WORKLOADS if engine}
    if output_format not in engines:
        return plan
    return with_engine(plan, engines[output_format], load_image(out, plan.spec))


def diff_folder(plan: Plan, output_format: str, folder: Path, progress: Progress) -> dict[str, str]:
    """The files in a folder that differ from what would be rendered now, each with a unified diff. Files in it that
    Marina did not write are ignored."""
    if not folder.is_dir():
        hint = f"marina manifests {plan.spec.file} --format {output_format}"
        raise InputError(f"`--check`: {folder}: no such folder", hint=hint)
    texts = _texts(plan, output_format, progress)
    committed = {str(file.relative_to(folder)): file for file in sorted(folder.rglob("*")) if file.is_file()}
    contents = {name: file.read_text(encoding="utf-8", errors="replace") for name, file in committed.items()}
    ours = {name: text for name, text in contents.items() if name in texts or ORIGIN in text}
    diffs = {}
    for name in sorted({*texts, *ours}):
        old, new = ours.get(name, ""), texts.get(name, "")
        if old != new:
            # Not `splitlines`, which would not show that only the last line's end is missing.
            lines = unified_diff(
                old.split("\n"), new.split("\n"), str(folder / name), f"{name} as rendered", lineterm=""
            )
            diffs[name] = "\n".join(lines)
    return diffs


def _texts(plan: Plan, output_format: str, progress: Progress) -> dict[str, str]:
    if output_format == "helm":
        return chart_texts(plan)
    if output_format == "kserve":
        if any(patch.kind == "Service" and patch.name in (None, plan.name) for patch in plan.spec.kubernetes.patches):
            progress.say("note: KServe makes the Service itself, so patches of it are left out")
        return {name: to_yaml(documents, [ORIGIN]) for name, documents in kserve_files(plan).items()}
    return manifest_texts(plan, "single" if output_format == "single" else "files")
