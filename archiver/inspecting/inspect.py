"""`marina inspect`: reports a MAR's manifest and record, whether its files are the recorded ones, and what loading it
would run.

Nothing is unpacked to disk and nothing is unpickled, so an untrusted archive can be inspected safely."""

import hashlib
import json
import re
import zipfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from marina.archiver.archive import MANIFEST
from marina.archiver.inspecting.code import find_code, hides_module, is_foreign_python
from marina.archiver.inspecting.layout import find_layout_oddities
from marina.archiver.inspecting.nested import READ_ERRORS, ReadBudget, TooMuch, walk_nested, zip_member
from marina.archiver.inspecting.pickles import Pickle, find_pickles
from marina.archiver.inspecting.programs import find_program
from marina.archiver.inspecting.python import PythonFile, find_unknown_uses
from marina.archiver.inspecting.report import Report
from marina.config.errors import ArchiveError, reason_of
from marina.config.record import RECORD, Record, file_sha256, read_record

# TorchServe's own handlers; any other handler has to be a file in the archive.
_BUILT_IN = frozenset(
    ["base_handler", "densenet_handler", "image_classifier", "image_segmenter", "object_detector", "text_classifier"]
)
_SOURCE = "source"
# Hostile archives may have longer ones, which would fill the memory.
_LONGEST_RECORD, _DEEPEST_MODULE = 2**25, 30
_FILES_IN_MANIFEST = ("handler", "modelFile", "serializedFile", "configFile", "extraFiles")


def inspect(mar: Path) -> Report:
    """Inspects every file of a MAR; ArchiveError if it is not one."""
    try:
        budget = ReadBudget.of(mar.stat().st_size)
        with zipfile.ZipFile(mar) as archive:
            names = [info.filename for info in archive.infolist()]
            if MANIFEST not in names:
                raise ArchiveError(f"{mar}: not a MAR: it has no `{MANIFEST}`")
            manifest = _read_manifest(mar, archive, budget)
            if RECORD in names and archive.getinfo(RECORD).file_size > _LONGEST_RECORD:
                raise TooMuch(f"`{RECORD}` is longer than {_LONGEST_RECORD:,} bytes")
            record = read_record(mar) if RECORD in names else None
            findings = _Findings(record, archive, budget)
            findings.damage += [*find_layout_oddities(mar, archive), *_manifest_problems(manifest, names)]
            findings.collect()
    except FileNotFoundError as err:
        raise ArchiveError(f"{mar}: no such file", hint="marina package SPEC") from err
    except TooMuch as err:
        raise ArchiveError(f"{mar}: {err}; the rest is not inspected") from err
    except READ_ERRORS as err:
        raise ArchiveError(f"{mar}: not a readable MAR: {reason_of(err)}") from err
    return Report(
        mar=str(mar),
        sha256=file_sha256(mar),
        bytes=mar.stat().st_size,
        manifest=manifest,
        record=record,
        files=findings.sizes,
        damage=tuple(dict.fromkeys(findings.damage)),
        pickles=tuple(findings.pickles),
        code=tuple(dict.fromkeys(findings.code)),
    )


def _read_manifest(mar: Path, archive: zipfile.ZipFile, budget: ReadBudget) -> dict[str, Any]:
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


def _manifest_problems(manifest: dict[str, Any], names: list[str]) -> list[str]:
    """Files that the manifest names but the archive does not contain, and packages that it would install."""
    model, problems = manifest["model"], []
    for key in _FILES_IN_MANIFEST:
        value = model.get(key)
        if value is None:
            continue
        if not isinstance(value, str):
            problems.append(f"{MANIFEST}: `{key}` is not a string")
            continue
        for item in value.split(",") if key == "extraFiles" else [value]:
            file = item.partition(":")[0] if key == "handler" else item
            is_present = not {file, f"{file}.py", PurePosixPath(file).name}.isdisjoint(names)
            is_present |= any(name.startswith(f"{file}/") for name in names)
            if not is_present and not (key == "handler" and file in _BUILT_IN):
                problems.append(f"{MANIFEST}: `{key}` names `{file}`, which is not in the archive")
    if model.get("requirementsFile"):
        problems.append(f"{MANIFEST}: installs packages, from `{model['requirementsFile']}`")
    return problems


def _importable(names: Iterable[str]) -> frozenset[str]:
    """The dotted names of the archive's modules and packages, which its Python may import since they are inspected
    too."""
    files = (name.removeprefix(f"{_SOURCE}/").removesuffix(".py") for name in names if name.endswith(".py"))
    parts = [PurePosixPath(file).parts for file in files]
    return frozenset(".".join(part[:size]) for part in parts for size in range(1, min(len(part), _DEEPEST_MODULE) + 1))


class _Findings:
    """Collects the findings about an archive's members."""

    def __init__(self, record: Record | None, archive: zipfile.ZipFile, budget: ReadBudget) -> None:
        self.damage: list[str] = []
        self.pickles: list[Pickle] = []
        self.code: list[str] = []
        self.sizes = {info.filename: info.file_size for info in archive.infolist() if not info.is_dir()}
        self._record, self._archive, self._budget = record, archive, budget
        files = (PurePosixPath(name) for name in self.sizes if name.endswith((".py", ".pyc", ".so")))
        self._python: list[PythonFile] = []
        self._modules = frozenset(part.partition(".")[0] for file in files for part in file.parts)

    def collect(self) -> None:
        """Inspects every member and everything nested in it."""
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
            self._inspect_member(name, member.data)
        self.damage += [f"{name}: recorded, but missing" for name in recorded if name not in self.sizes]
        self.code += find_unknown_uses(self._python, _importable(self.sizes))

    def _inspect_member(self, name: str, data: bytes) -> None:
        if (hidden := hides_module(name)) is not None:
            self.code.append(f"{name}: would replace the module `{hidden}` in a worker")
        for file in walk_nested(name, data, self._budget):
            if file.trouble:
                self.damage.append(f"{file.name}: {file.trouble}")
                continue
            self.pickles += find_pickles(file.name, file.data, self._modules)
            self.code += find_program(file.name, file.data)
            self.code += find_code(file.name, file.data, is_recorded=self._is_artifact(name))
            if is_foreign_python(file.name, file.data):
                self._python.append(PythonFile(file.name, file.data))

    def _is_artifact(self, name: str) -> bool:
        """Whether the record lists this member as compiled code that a worker loads."""
        if self._record is None:
            return False
        cache = self._record.cache
        in_cache = cache is not None and re.match(rf"{re.escape(cache)}/.*\.so$", name) is not None
        return in_cache or name in {artifact.file for artifact in self._record.artifacts}
