"""`marina inspect`: reports a packed model's manifest and record, whether its files are the recorded ones, and what
runs when it is loaded.

Nothing is unpacked to disk and nothing is unpickled, so an untrusted archive can be inspected safely. Code is listed
and not judged: a person has to read it."""

import hashlib
import importlib.util
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from marina.archiver.archive import MANIFEST, PACKAGE_TEXT, RESERVED_MODULES
from marina.archiver.inspecting.formats import format_of, what_runs
from marina.archiver.inspecting.pickles import Pickle, find_pickle
from marina.archiver.inspecting.reading import Archive, File, TooMuch, open_archive
from marina.archiver.inspecting.report import FileReport, Report
from marina.config.record import RECORD, Record, file_sha256, read_record

# TorchServe's own handlers; any other handler has to be a file in the archive.
_BUILT_IN = frozenset(
    ["base_handler", "densenet_handler", "image_classifier", "image_segmenter", "object_detector", "text_classifier"]
)
# Hostile archives may have longer ones, which would fill the memory.
_LONGEST_RECORD = 2**25
_FILES_IN_MANIFEST = ("handler", "modelFile", "serializedFile", "configFile", "extraFiles")
# Where Marina's own handlers are; older packages have them at the top.
_HANDLERS = ("marina/handlers/", "handlers/")
_MARINA = "marina/__init__.py"
_HIDING = (RESERVED_MODULES | {"sitecustomize", "torchvision", "usercustomize"}) - {"marina", "marina_entry"}
# YAML tags by which Python or Java would create objects of any class.
_FOREIGN_TAG = re.compile(r"(^|[\s\[{,:-])!(!(python|java|ruby|perl|js)|<?tag:yaml\.org,2002:python|![\w.]+\.[\w.]+)")
_INSTALLS = re.compile(rb"^[^#\n]*\buseVenv[\"']?\s*:\s*[\"']?(true|yes|on)\b", re.MULTILINE | re.IGNORECASE)
_TRUST = re.compile(rb"[\"']?\btrust_remote_code\b[\"']?\s*[:=]\s*[\"']?(true|yes|on|y|1)\b", re.IGNORECASE)
_SETTINGS = (".json", ".yaml", ".yml", ".toml", ".ini", ".cfg", ".properties")


def inspect(mar: Path) -> Report:
    """Inspects every file of a `.mar`, a `.tar.gz` or a folder; ArchiveError if it is not a packed model."""
    with open_archive(mar) as archive:
        if archive.sizes.get(RECORD, 0) > _LONGEST_RECORD:
            raise TooMuch(f"`{RECORD}` is longer than {_LONGEST_RECORD:,} bytes")
        record = read_record(mar) if RECORD in archive.sizes and mar.is_file() else None
        findings = _Findings(record, archive)
    return Report(
        mar=str(mar),
        sha256=file_sha256(mar) if mar.is_file() else "",
        bytes=mar.stat().st_size if mar.is_file() else sum(archive.sizes.values()),
        manifest=archive.manifest,
        record=record,
        files=findings.files,
        damage=tuple(dict.fromkeys(findings.damage)),
        pickles=tuple(findings.pickles),
        dangers=tuple(dict.fromkeys(findings.dangers)),
        runs=tuple(findings.runs),
        own_handlers=findings.own_handlers,
    )


class _Findings:
    """Collects the findings about an archive's files."""

    def __init__(self, record: Record | None, archive: Archive) -> None:
        self.damage = [*archive.damage, *_missing_files(archive.manifest, list(archive.sizes))]
        self.pickles: list[Pickle] = []
        self.dangers: list[str] = []
        self.runs: list[str] = list(_installed_packages(archive.manifest))
        self.files: dict[str, FileReport] = {}
        self.own_handlers = 0
        recorded = record.files if record else {}
        for file in archive.files():
            if file.trouble:
                self.damage.append(f"{file.name}: {file.trouble}")
                continue
            sha256, kind = hashlib.sha256(file.data).hexdigest(), format_of(file.name, file.data)
            self.files[file.name] = FileReport(len(file.data), sha256, kind)
            if record and file.name != RECORD and recorded.get(file.name) != sha256:
                wrong = "not the recorded content" if file.name in recorded else "not in the record"
                self.damage.append(f"{file.name}: {wrong}")
            if _is_own(file.name, sha256):
                self.own_handlers += 1
                continue
            self.dangers += _find_dangers(file)
            self._look_into(archive, file, kind)
        self.damage += [f"{name}: recorded, but missing" for name in recorded if name not in archive.sizes]

    def _look_into(self, archive: Archive, file: File, kind: str) -> None:
        is_program = what_runs(kind) is not None
        for inner in archive.nested(file):
            if inner.trouble:
                self.damage.append(f"{inner.name}: {inner.trouble}")
                continue
            inner_kind = format_of(inner.name, inner.data)
            # The parts of a program are not listed one by one.
            if (what := what_runs(inner_kind)) and (inner is file or not is_program):
                self.runs.append(f"{inner.name}: {what}")
            if pickle := find_pickle(inner.name, inner.data, inner_kind):
                self.pickles.append(pickle)


def _find_dangers(file: File) -> Iterator[str]:
    """What nobody who packs a model in good faith needs."""
    name = file.name
    # The record of an archive may have a worker look for modules in `source` too.
    top = PurePosixPath(name.removeprefix("source/")).parts[:1]
    module = top[0].partition(".")[0] if top else ""
    if name.lower().endswith((".py", ".pyc", ".so")) and module in _HIDING:
        yield f"{name}: would replace the module `{module}` in a worker"
    if name.lower().endswith((".yaml", ".yml")):
        if _FOREIGN_TAG.search(file.data.decode("utf-8", "replace")):
            yield f"{name}: a YAML tag that creates objects of a programming language"
        if _INSTALLS.search(file.data):
            yield f"{name}: installs packages, by `useVenv`"
    if name.lower().endswith(_SETTINGS) and _TRUST.search(file.data):
        yield f"{name}: fetches code from elsewhere, by `trust_remote_code`"


def _missing_files(manifest: dict[str, Any], names: list[str]) -> Iterator[str]:
    """Files that the manifest names but the archive does not contain."""
    for key in _FILES_IN_MANIFEST:
        value = manifest["model"].get(key)
        if value is not None and not isinstance(value, str):
            yield f"{MANIFEST}: `{key}` is not a string"
            continue
        for item in (value or "").split(",") if key == "extraFiles" else [value or ""]:
            file = item.partition(":")[0] if key == "handler" else item
            is_there = not {file, f"{file}.py", PurePosixPath(file).name}.isdisjoint(names)
            is_there |= any(name.startswith(f"{file}/") for name in names)
            if file and not is_there and not (key == "handler" and file in _BUILT_IN):
                yield f"{MANIFEST}: `{key}` names `{file}`, which is not in the archive"


def _installed_packages(manifest: dict[str, Any]) -> Iterator[str]:
    if file := manifest["model"].get("requirementsFile"):
        yield f"{file}: pip installs what it lists, with `install_py_dep_per_model=true` in TorchServe's properties"


def _is_own(name: str, sha256: str) -> bool:
    """Whether a file is one of this version's handlers, wherever a package has them."""
    if name == _MARINA:
        return hashlib.sha256(PACKAGE_TEXT.encode()).hexdigest() == sha256
    folder = next((folder for folder in _HANDLERS if name.startswith(folder)), None)
    return folder is not None and _own_hashes().get(name.removeprefix(folder)) == sha256


@cache
def _own_hashes() -> dict[str, str]:
    """The sha256 of each file of this version's handlers, by its path among them."""
    origin = importlib.util.find_spec("marina.handlers")
    if origin is None or origin.origin is None:
        return {}
    folder = Path(origin.origin).parent
    return {
        file.relative_to(folder).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in folder.rglob("*.py")
    }
