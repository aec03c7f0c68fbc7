"""Packs the source for `compile: eager`: the file of a factory, the modules beside it that it imports, its weights."""

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from marina.archiver.sources import Source
from marina.archiver.user_code import stage_modules
from marina.config.errors import SourceError
from marina.config.record import Code
from marina.config.spec import Spec
from marina.handlers.networks import SOURCE_FOLDER

WEIGHTS = "weights.safetensors"


def stage_source(spec: Spec, source: Source, folder: Path) -> Code:
    """Copies the factory's files and saves the network's weights; returns the record's `code`."""
    text, _, factory = spec.model.source.partition(":")
    return Code(
        file=stage_modules(spec, spec.path(text), "model.source", folder / SOURCE_FOLDER),
        factory=factory,
        weights=WEIGHTS,
        shared=_save_weights(spec, source.network, folder / WEIGHTS),
    )


def _save_weights(spec: Spec, network: nn.Module, file: Path) -> tuple[str, ...]:
    """Saves a network's state; returns the names of tensors that share their memory with one saved under another
    name."""
    tensors: dict[str, torch.Tensor] = {}
    seen: set[tuple[object, ...]] = set()
    shared = []
    for name, value in network.state_dict().items():
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.is_quantized:
            kind = type(value).__name__ if not isinstance(value, torch.Tensor) else "a sparse or quantised tensor"
            raise SourceError(
                f"{spec.file}: `model.source`: its state `{name}` is {kind}, allowed: plain tensors",
                hint="keep it out of `state_dict`, or use `compile: export`",
            )
        place = (value.data_ptr(), value.shape, value.stride(), value.dtype)
        if value.numel() and place in seen:
            shared.append(name)
            continue
        seen.add(place)
        tensors[name] = value.detach().clone().contiguous()
    save_file(tensors, file)
    return tuple(shared)
