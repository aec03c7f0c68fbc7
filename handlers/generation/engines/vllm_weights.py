"""Checks that a mounted folder has the files that were packaged. So tens of gigabytes can stay out of a MAR, and still
nothing else is served."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from marina.handlers.record import RecordError

# How much of a file is compared: the names, types and places of a file's tensors are at its beginning.
_HEAD = 1 << 20


def fingerprint_files(files: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """The size of each file and the hash of its beginning, by its name."""
    return {file.name: {"bytes": file.stat().st_size, "head": _sha256_of_head(file)} for file in files}


def check_files(folder: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises RecordError if a file is missing, new or different; only beginnings are read."""
    if not folder.is_dir():
        raise RecordError(f"`text.vllm.weights`: `{folder}` is not a folder here; is its volume mounted?")
    if extra := sorted({file.name for file in folder.glob("*.safetensors")} - files.keys()):
        raise RecordError(f"`{folder / extra[0]}` is not in the package")
    for name, expected in sorted(files.items()):
        file = folder / name
        if not file.is_file():
            raise RecordError(f"`{file}` is missing")
        if (size := file.stat().st_size) != expected["bytes"]:
            raise RecordError(f"`{file}` has {size} bytes, but the packaged file has {expected['bytes']}")
        if (head := _sha256_of_head(file)) != expected["head"]:
            raise RecordError(f"`{file}` differs from the packaged file: head {head}, not {expected['head']}")


def _sha256_of_head(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.sha256(stream.read(_HEAD)).hexdigest()
