"""Whether a folder that was mounted holds the files that were packaged: tens of gigabytes stay out of a MAR, and what
is served is what was named all the same."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

# The names, types and places of a file's tensors are at its beginning.
_HEAD = 1 << 20
_PIECE = 1 << 24


class OtherWeights(Exception):
    """The folder is not the one that was packaged; the message says which file."""


def describe(files: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """What is remembered of each file, by its name."""
    return {
        file.name: {"bytes": file.stat().st_size, "head": _sha256(file, _HEAD), "sha256": _sha256(file)}
        for file in files
    }


def check(folder: Path, files: Mapping[str, Mapping[str, Any]], *, whole: bool) -> None:
    """Raises OtherWeights unless all files are there; without `whole` by their sizes and beginnings."""
    if not folder.is_dir():
        raise OtherWeights(f"`text.vllm.weights`: `{folder}` is not a folder here; is its volume mounted?")
    if extra := sorted({file.name for file in folder.glob("*.safetensors")} - files.keys()):
        raise OtherWeights(f"`{folder / extra[0]}` is not in the package")
    for name, expected in sorted(files.items()):
        file = folder / name
        if not file.is_file():
            raise OtherWeights(f"`{file}` is missing")
        if (size := file.stat().st_size) != expected["bytes"]:
            raise OtherWeights(f"`{file}` has {size} bytes, but the packaged file has {expected['bytes']}")
        key, limit = ("sha256", None) if whole else ("head", _HEAD)
        if (sha256 := _sha256(file, limit)) != expected[key]:
            raise OtherWeights(f"`{file}` differs from the packaged file: {key} {sha256}, not {expected[key]}")


def _sha256(file: Path, limit: int | None = None) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        left = limit
        while piece := stream.read(_PIECE if left is None else min(left, _PIECE)):
            digest.update(piece)
            left = None if left is None else left - len(piece)
    return digest.hexdigest()
