"""`marina inspect`: what a MAR says of itself, whether its files are the recorded ones, and what loading it would run.

Nothing is unpacked to disk and nothing is unpickled, so a foreign archive can be looked at safely.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archiver.archive import MANIFEST
from archiver.inspecting.pickles import Pickle, find_pickles
from config.errors import ArchiveError
from config.record import RECORD, Record, file_sha256, read_record

# Larger members are no handlers or configurations; an archive that claims more than this is not read into memory.
_LARGEST = 8 * 2**30


@dataclass(frozen=True)
class Report:
    """What `inspect` found; `sound` when the files are the recorded ones and loading them runs no pickled code."""

    mar: str
    sha256: str
    bytes: int
    manifest: dict[str, Any]
    record: Record | None
    files: dict[str, int]
    damage: tuple[str, ...]
    pickles: tuple[Pickle, ...]

    @property
    def sound(self) -> bool:
        """Nothing is damaged and no pickle would run code."""
        return not self.damage and not any(pickle.runs_code for pickle in self.pickles)

    def as_data(self) -> dict[str, Any]:
        """The report as plain data for `--json`."""
        data = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        data["record"] = self.record.model_dump(mode="json", by_alias=True) if self.record else None
        data["pickles"] = [dataclasses.asdict(pickle) for pickle in self.pickles]
        return data | {"sound": self.sound}

    def as_text(self) -> str:
        """The report for a person."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        model = self.manifest.get("model", {})
        yield f"{self.mar}  {self.bytes / 1e6:.1f} MB  sha256 {self.sha256}"
        yield f"model      {model.get('modelName')} {model.get('modelVersion')}, handler {model.get('handler')}"
        if self.record is None:
            yield "record     none: Marina did not make this archive"
        else:
            record, key, agreed = self.record, self.record.key, self.record.agreement
            yield f"source     {record.source}, weights {record.weights}"
            yield f"compiled   {record.compile} {record.precision}, batches {list(record.batch_sizes)}"
            machine = " ".join(key.isa) or f"capability {key.capability}, CUDA {key.cuda}"
            yield f"needs      torch {key.torch}, {key.device}: {machine}"
            yield f"agreement  {agreed.agreement:.4f} ({agreed.measure} on {agreed.count} {agreed.inputs} inputs)"
        for name, size in self.files.items():
            yield f"  {size:>12,}  {name}"
        for pickle in self.pickles:
            danger = "RUNS CODE: " if pickle.runs_code else "tensors only: "
            yield f"pickle     {pickle.file}: {danger}{', '.join(pickle.imports) or 'no imports'}"
        yield from (f"DAMAGED    {damage}" for damage in self.damage)
        yield "sound" if self.sound else "NOT SOUND"


def inspect(mar: Path) -> Report:
    """Reads a MAR whole; ArchiveError when it is none."""
    try:
        with zipfile.ZipFile(mar) as archive:
            sizes = {info.filename: info.file_size for info in archive.infolist() if not info.is_dir()}
            if sum(sizes.values()) > _LARGEST:
                raise ArchiveError(f"{mar}: claims {sum(sizes.values()):,} bytes, allowed: {_LARGEST:,}")
            if MANIFEST not in sizes:
                raise ArchiveError(f"{mar}: not a MAR: it has no `{MANIFEST}`")
            manifest = json.loads(archive.read(MANIFEST))
            record = read_record(mar) if RECORD in sizes else None
            damage, pickles = _examine(archive, list(sizes), record)
    except FileNotFoundError as err:
        raise ArchiveError(f"{mar}: no such file", hint="marina package SPEC") from err
    except (OSError, zipfile.BadZipFile, ValueError) as err:
        raise ArchiveError(f"{mar}: not a readable MAR: {err}") from err
    return Report(str(mar), file_sha256(mar), mar.stat().st_size, manifest, record, sizes, damage, pickles)


def _examine(
    archive: zipfile.ZipFile, names: list[str], record: Record | None
) -> tuple[tuple[str, ...], tuple[Pickle, ...]]:
    damage: list[str] = []
    pickles: list[Pickle] = []
    recorded = record.files if record else {}
    for name in names:
        try:
            data = archive.read(name)
        except zipfile.BadZipFile as err:
            damage.append(f"{name}: {err}")
            continue
        if name.startswith("/") or ".." in Path(name).parts:
            damage.append(f"{name}: would be unpacked outside the model's folder")
        if record and name != RECORD:
            if name not in recorded:
                damage.append(f"{name}: not in the record")
            elif hashlib.sha256(data).hexdigest() != recorded[name]:
                damage.append(f"{name}: not the recorded content")
        pickles += find_pickles(name, data)
    damage += [f"{name}: recorded, but missing" for name in recorded if name not in names]
    return tuple(damage), tuple(pickles)
