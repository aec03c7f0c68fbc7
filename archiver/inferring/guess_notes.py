"""What of the inputs is only a guess: a size beside which others work as well, a form that no layer asks for."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

import torch
from torch import nn

from archiver.inferring.inferred import Input
from archiver.inferring.trial import run

_OTHER_SIDE = 32


def describe_guesses(network: nn.Module, inputs: dict[str, Input], mine: Set[str], unsaid: Set[str]) -> list[str]:
    """A sentence for each; `mine` are the inputs of which a user has said nothing, `unsaid` those that reached no
    layer."""
    notes = []
    for name, tensor in inputs.items():
        if name not in mine or tensor.mask_of is not None:
            continue
        if name in unsaid:
            notes.append(f"`{name}`: {tensor} is a guess that works, no layer says it; `--input {name}:…` says another")
        elif len(tensor.shape) == 3 and tensor.sequence is None:
            channels, rows, columns = tensor.shape
            larger = replace(tensor, shape=(channels, rows + _OTHER_SIDE, columns + _OTHER_SIDE))
            if _works(network, inputs | {name: larger}):
                notes.append(f"`{name}`: {rows} x {columns} is a guess, the model takes other sizes as well")
    return notes + _lengths(network, inputs, mine - unsaid)


def _lengths(network: nn.Module, inputs: dict[str, Input], mine: Set[str]) -> list[str]:
    """Sequences are tried together, for they are of one length."""
    along = {name: tensor.sequence for name, tensor in inputs.items() if tensor.sequence is not None}
    along |= {name: 0 for name, tensor in inputs.items() if tensor.mask_of in along}
    if not along.keys() & mine:
        return []
    longer = {name: _twice(tensor, along[name]) if name in along else tensor for name, tensor in inputs.items()}
    name = next(name for name in along if name in mine)
    if not _works(network, longer):
        return []
    return [f"`{name}`: {inputs[name].shape[along[name]]} is a guess, the model takes longer ones as well"]


def _twice(tensor: Input, at: int) -> Input:
    return replace(tensor, shape=(*tensor.shape[:at], 2 * tensor.shape[at], *tensor.shape[at + 1 :]))


def _works(network: nn.Module, inputs: dict[str, Input]) -> bool:
    generator = torch.Generator().manual_seed(0)
    return run(network, [tensor.values(1, generator) for tensor in inputs.values()]).outputs is not None
