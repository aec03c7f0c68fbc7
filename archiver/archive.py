"""Packs a staged folder into a MAR: torch-model-archiver lays it out, and the same inputs give the same bytes."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from marina.config.errors import ArchiveError
from marina.config.record import RECORD, Record, file_sha256, partial_file

ENTRY = "marina_entry.py"
# The `marina` of an archive has nothing of the one that packaged it but the handlers.
PACKAGE_TEXT = '"""What a worker runs of Marina."""\n'
# A file of such a name in the archive would be imported instead of a module that a worker needs.
RESERVED_MODULES = sys.stdlib_module_names | {"PIL", "marina", "marina_entry", "numpy", "torch", "ts"}
MANIFEST = "MAR-INF/MANIFEST.json"
# Replaces the time of packaging that torch-model-archiver writes into the manifest, and that nothing reads.
CREATED_ON = "01/01/1980 00:00:00"
_TIME = (1980, 1, 1, 0, 0, 0)


def lay_out(staged: Path, target: Path, *, name: str, version: str) -> None:
    """Writes the staged files to `target` in TorchServe's layout, with a manifest; `target` must not exist yet."""
    # torch-model-archiver empties `<temporary folder>/<model name>` first, so it gets its own temporary folder.
    with tempfile.TemporaryDirectory(prefix="marina-archiver-") as scratch:
        exported = Path(scratch) / "exported"
        exported.mkdir()
        command = [sys.executable, "-m", "model_archiver.model_packaging"]
        command += ["--model-name", name, "--version", version, "--handler", str(staged / ENTRY)]
        command += ["--extra-files", str(staged), "--config-file", str(staged / "model-config.yaml")]
        command += ["--archive-format", "no-archive", "--export-path", str(exported)]
        done = subprocess.run(command, env=os.environ | {"TMPDIR": scratch}, capture_output=True, text=True)
        if done.returncode != 0:
            last = (done.stderr or done.stdout).strip().splitlines()[-1]
            raise ArchiveError(f"torch-model-archiver failed: {last[:300]}")
        (exported / name).replace(target)
    manifest = json.loads((target / MANIFEST).read_text(encoding="utf-8"))
    manifest["createdOn"] = CREATED_ON
    (target / MANIFEST).write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def file_hashes(folder: Path) -> dict[str, str]:
    """The sha256 of every file below a folder except the record, by its relative path."""
    return {name: file_sha256(folder / name) for name in _files(folder) if name != RECORD}


def write_archive(folder: Path, record: Record, mar: Path) -> None:
    """Writes the folder and its record as a MAR, which appears under its name only once it is complete."""
    (folder / RECORD).write_text(record.json_text(), encoding="utf-8")
    mar.parent.mkdir(parents=True, exist_ok=True)
    partial = partial_file(mar)
    try:
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED) as archive:
            for name in _files(folder):
                entry = zipfile.ZipInfo(name, _TIME)
                entry.external_attr = 0o644 << 16
                entry.file_size = (folder / name).stat().st_size
                with (folder / name).open("rb") as source, archive.open(entry, "w") as target:
                    shutil.copyfileobj(source, target, 2**20)
        partial.replace(mar)
    finally:
        partial.unlink(missing_ok=True)


def _files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
