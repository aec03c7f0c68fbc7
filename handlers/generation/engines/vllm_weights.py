"""Checks that a mounted folder has the files that were packaged. So tens of gigabytes can stay out of a MAR, and still
nothing else is served."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from marina.handlers.record import RecordError

# How much of a file `head` covers: the names, types and places of a file's tensors are at its beginning.
_HEAD = 1 << 20
_PIECE = 1 << 24


def fingerprint_files(files: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """The size and the hashes of each file, by its name."""
    return {
        file.name: {"bytes": file.stat().st_size, "head": _sha256(file, _HEAD), "sha256": _sha256(file)}
        for file in files
    }


def check_files(folder: Path, files: Mapping[str, Mapping[str, Any]], *, whole: bool) -> None:
    """Raises RecordError if a file is missing, new or different; without `whole`, only beginnings are read."""
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
        key, limit = ("sha256", None) if whole else ("head", _HEAD)
        if (sha256 := _sha256(file, limit)) != expected[key]:
            raise RecordError(f"`{file}` differs from the packaged file: {key} {sha256}, not {expected[key]}")


def _sha256(file: Path, limit: int | None = None) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        left = limit
        while piece := stream.read(_PIECE if left is None else min(left, _PIECE)):
            digest.update(piece)
            left = None if left is None else left - len(piece)
    return digest.hexdigest()
