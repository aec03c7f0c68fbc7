"""`marina inspect`: what a MAR says of itself, whether its files are the recorded ones, and what loading it would run.

Nothing is unpacked to disk and nothing is unpickled, so a foreign archive can be looked at safely.
"""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from archiver.archive import MANIFEST
from archiver.inspecting.code import find_code, hides_module, is_foreign_python
from archiver.inspecting.layout import find_layout_oddities
from archiver.inspecting.nested import READ_ERRORS, Budget, TooMuch, unpacked, zip_member
from archiver.inspecting.pickles import Pickle, find_pickles
from archiver.inspecting.programs import find_program
from archiver.inspecting.python import Source, judge
from archiver.inspecting.report import Report
from config.errors import ArchiveError
from config.record import RECORD, Record, file_sha256, read_record

# What TorchServe brings itself; any other handler is a file in the archive.
_BUILT_IN = frozenset(
    ["base_handler", "densenet_handler", "image_classifier", "image_segmenter", "object_detector", "text_classifier"]
)
_SOURCE = "source"
_FILES_IN_MANIFEST = ("handler", "modelFile", "serializedFile", "configFile", "extraFiles")


def inspect(mar: Path) -> Report:
    """Reads a whole MAR; ArchiveError when it is not one."""
    try:
        budget = Budget.of(mar.stat().st_size)
        with zipfile.ZipFile(mar) as archive:
            names = [info.filename for info in archive.infolist()]
            if MANIFEST not in names:
                raise ArchiveError(f"{mar}: not a MAR: it has no `{MANIFEST}`")
            manifest = _read_manifest(mar, archive, budget)
            record = read_record(mar) if RECORD in names else None
            seen = _Seen(record, archive, budget)
            seen.damage += [*find_layout_oddities(mar, archive), *_of_manifest(manifest, names)]
            seen.examine()
    except FileNotFoundError as err:
        raise ArchiveError(f"{mar}: no such file", hint="marina package SPEC") from err
    except TooMuch as err:
        raise ArchiveError(f"{mar}: {err}; it is not looked at further") from err
    except READ_ERRORS as err:
        raise ArchiveError(f"{mar}: not a readable MAR: {err or type(err).__name__}") from err
    return Report(
        mar=str(mar),
        sha256=file_sha256(mar),
        bytes=mar.stat().st_size,
        manifest=manifest,
        record=record,
        files=seen.sizes,
        damage=tuple(dict.fromkeys(seen.damage)),
        pickles=tuple(seen.pickles),
        code=tuple(dict.fromkeys(seen.code)),
    )


def _read_manifest(mar: Path, archive: zipfile.ZipFile, budget: Budget) -> dict[str, Any]:
    member = zip_member(archive, archive.getinfo(MANIFEST), budget, MANIFEST)
    if member.trouble:
        raise ArchiveError(f"{mar}: `{MANIFEST}`: {member.trouble}")
    try:
        manifest = json.loads(member.data)
    except (ValueError, RecursionError) as err:
        raise ArchiveError(f"{mar}: `{MANIFEST}`: not JSON: {str(err) or type(err).__name__}") from err
    if not isinstance(manifest, dict) or not isinstance(manifest.get("model"), dict):
        raise ArchiveError(f"{mar}: `{MANIFEST}`: no object with a `model` in it")
    return manifest


def _of_manifest(manifest: dict[str, Any], names: list[str]) -> list[str]:
    """What the manifest asks for that is not in the archive."""
    model, texts = manifest["model"], []
    for key in _FILES_IN_MANIFEST:
        given = model.get(key)
        if given is None:
            continue
        if not isinstance(given, str):
            texts.append(f"{MANIFEST}: `{key}` is not a text")
            continue
        for item in given.split(",") if key == "extraFiles" else [given]:
            file = item.partition(":")[0] if key == "handler" else item
            there = {file, f"{file}.py", PurePosixPath(file).name} & set(names)
            there |= {name for name in names if name.startswith(f"{file}/")}
            if not there and not (key == "handler" and file in _BUILT_IN):
                texts.append(f"{MANIFEST}: `{key}` names `{file}`, which is not in the archive")
    if model.get("requirementsFile"):
        texts.append(f"{MANIFEST}: installs packages, from `{model['requirementsFile']}`")
    return texts


def _importable(names: Iterable[str]) -> frozenset[str]:
    """The dotted names of what Python of the archive may import of the archive, where all of it is looked at."""
    files = (name.removeprefix(f"{_SOURCE}/").removesuffix(".py") for name in names if name.endswith(".py"))
    parts = [PurePosixPath(file).parts for file in files]
    return frozenset(".".join(part[:size]) for part in parts for size in range(1, len(part) + 1))


class _Seen:
    """What was seen in the members of an archive."""

    def __init__(self, record: Record | None, archive: zipfile.ZipFile, budget: Budget) -> None:
        self.damage: list[str] = []
        self.pickles: list[Pickle] = []
        self.code: list[str] = []
        self.sizes = {info.filename: info.file_size for info in archive.infolist() if not info.is_dir()}
        self._record, self._archive, self._budget = record, archive, budget
        files = (PurePosixPath(name) for name in self.sizes if name.endswith((".py", ".pyc", ".so")))
        self._python: list[Source] = []
        self._modules = frozenset(part.partition(".")[0] for file in files for part in file.parts)

    def examine(self) -> None:
        """Every member, and everything inside of it."""
        recorded = self._record.files if self._record else {}
        for info in self._archive.infolist():
            name = info.filename
            if info.is_dir() and not info.file_size:
                continue
            member = zip_member(self._archive, info, self._budget, name)
            if member.trouble:
                self.damage.append(f"{name}: {member.trouble}")
                continue
            if self._record and name != RECORD:
                if name not in recorded:
                    self.damage.append(f"{name}: not in the record")
                elif hashlib.sha256(member.data).hexdigest() != recorded[name]:
                    self.damage.append(f"{name}: not the recorded content")
            self._member(name, member.data)
        self.damage += [f"{name}: recorded, but missing" for name in recorded if name not in self.sizes]
        self.code += judge(self._python, _importable(self.sizes))

    def _member(self, name: str, data: bytes) -> None:
        if (hidden := hides_module(name)) is not None:
            self.code.append(f"{name}: would replace the module `{hidden}` in a worker")
        for inside in unpacked(name, data, self._budget):
            if inside.trouble:
                self.damage.append(f"{inside.name}: {inside.trouble}")
                continue
            self.pickles += find_pickles(inside.name, inside.data, self._modules)
            self.code += find_program(inside.name, inside.data)
            self.code += find_code(inside.name, inside.data, is_recorded=self._is_artifact(name))
            if is_foreign_python(inside.name, inside.data):
                self._python.append(Source(inside.name, inside.data))

    def _is_artifact(self, name: str) -> bool:
        """Whether the record names this member as compiled code that a worker loads."""
        if self._record is None:
            return False
        cache = self._record.cache
        in_cache = cache is not None and re.match(rf"{re.escape(cache)}/.*\.so$", name) is not None
        return in_cache or name in {artifact.file for artifact in self._record.artifacts}
