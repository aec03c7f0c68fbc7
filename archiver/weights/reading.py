"""Reads a file of weights by what is in it, whatever it is called, and runs nothing of it."""

import json
import pickle
import warnings
from pathlib import Path
from typing import Any

import torch

from marina.archiver.inspecting.formats import format_of
from marina.archiver.weights.stand_ins import read_scripted, read_stand_ins
from marina.config.errors import SourceError
from marina.config.hf_folder import is_pointer
from marina.config.other_formats import OTHER_KINDS, sentence_on

# The beginning and the end of a file tell its format: a zip file has its directory at its end.
_BEGINNING, _END = 4096, 2**20
_INDEX_KEY = "weight_map"


def read_weights(where: str, file: Path) -> Any:
    """The content of a file of weights: names to tensors, or a checkpoint. SourceError if it cannot be read."""
    kind = kind_of_file(where, file)
    if kind in OTHER_KINDS and kind != "JSON":
        text, hint = sentence_on(kind, str(file))
        raise SourceError(f"{where}: `{file}` {text}", hint=hint)
    try:
        if kind == "safetensors" or file.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(file)
        if kind == "JSON":
            return _read_parts(where, file)
        with warnings.catch_warnings(action="ignore"):
            content = _read_torch(file, kind)
    except SourceError:
        raise
    except Exception as err:
        # torch's message first explains how to load a file that one trusts.
        text = str(err).rpartition("WeightsUnpickler error:")[2].strip()
        reason = text.partition("\n")[0].partition(". ")[0] or f"{type(err).__name__}, it may be cut off"
        raise SourceError(f"{where}: `{file}` cannot be read: {reason}") from err
    if kind == "TorchScript" and not content:
        text = "has no weights by name, because it was frozen: its program holds them as constants"
        raise SourceError(f"{where}: `{file}` {text}", hint=f"--source {file} --trust-pickle, without `weights`")
    return content


def kind_of_file(where: str, file: Path) -> str:
    """The format of a file by its content; SourceError if there is no such file."""
    if not file.is_file():
        raise SourceError(f"{where}: no such file: `{file}`")
    if is_pointer(file):
        raise SourceError(f"{where}: `{file}` is only Git LFS's pointer to the file", hint="git lfs pull")
    size = file.stat().st_size
    with file.open("rb") as stream:
        data = stream.read(_BEGINNING)
        if size > _BEGINNING:
            stream.seek(max(_BEGINNING, size - _END))
            data += stream.read()
    if data[8:10] == b'{"' and int.from_bytes(data[:8], "little") < size:
        return "safetensors"
    return "JSON" if data[:64].lstrip()[:1] == b"{" else format_of(file.name, data)


def _read_torch(file: Path, kind: str) -> Any:
    if kind == "TorchScript":
        return read_scripted(file)
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        # It holds more than tensors and plain data, such as a training's settings, or the module itself.
        return read_stand_ins(file)


def _read_parts(where: str, index: Path) -> dict[str, torch.Tensor]:
    """The tensors of all the files that an index names, such as `model.safetensors.index.json`."""
    data = json.loads(index.read_text(encoding="utf-8"))
    named = data.get(_INDEX_KEY)
    if "cells" in data or not isinstance(named, dict):
        text, hint = sentence_on("notebook" if "cells" in data else "JSON", str(index))
        raise SourceError(f"{where}: `{index}` {text}", hint=hint)
    tensors: dict[str, torch.Tensor] = {}
    for name in sorted(set(map(str, named.values()))):
        if Path(name).name != name:
            raise SourceError(f"{where}: `{index}` names `{name}`, allowed: files beside it")
        tensors |= read_weights(where, index.with_name(name))
    if missing := sorted(named.keys() - tensors.keys()):
        raise SourceError(f"{where}: `{missing[0]}` is in none of the files that `{index}` names")
    return tensors
