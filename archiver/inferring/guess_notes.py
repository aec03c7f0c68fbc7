"""Notes on which parts of the inputs are guesses: a size beside which others work too, a shape that no layer shows."""

import inspect
from collections.abc import Set
from dataclasses import replace

import torch
from torch import nn

from marina.archiver.inferring.inferred import Input
from marina.archiver.inferring.trial import try_inputs

_OTHER_SIDE = 32
# How many optional arguments are named: some models of `transformers` have dozens.
_MOST_NAMED = 4
_OF_TRAINING = ("labels", "targets")


def describe_guesses(
    network: nn.Module, inputs: dict[str, Input], inferred: Set[str], unreached: Set[str]
) -> tuple[list[str], frozenset[str]]:
    """A note per guess, and the inputs that work in other sizes, too; `inferred` are the inputs that the user did not
    give, `unreached` those that no layer got directly."""
    notes, free = [], set[str]()
    for name, tensor in inputs.items():
        if name not in inferred or tensor.mask_of is not None:
            continue
        if name in unreached:
            notes.append(
                f"`{name}`: {tensor} works but is a guess, as no layer shows it; to change: `--input {name}:…`"
            )
        elif len(tensor.shape) > 2 and tensor.sequence is None:
            # The channels are the first dimension or the last one.
            for sides in (slice(1, None), slice(-1)):
                larger = list(tensor.shape)
                larger[sides] = [side + _OTHER_SIDE for side in larger[sides]]
                if _works(network, inputs | {name: replace(tensor, shape=tuple(larger))}):
                    size = " x ".join(map(str, tensor.shape[sides]))
                    notes.append(f"`{name}`: {size} is a guess, the model takes other sizes as well")
                    free.add(name)
                    break
    notes += _length_note(network, inputs, inferred - unreached) + _optional_note(network, inputs)
    return notes, frozenset(free)


def _optional_note(network: nn.Module, inputs: dict[str, Input]) -> list[str]:
    """A note if `forward` also takes what may be a tensor, but needs none."""
    others = [
        f"`{entry.name}`"
        for entry in inspect.signature(network.forward).parameters.values()
        if entry.default is None and entry.name not in (*inputs, *_OF_TRAINING)
        if entry.annotation is entry.empty or "Tensor" in str(entry.annotation)
    ]
    if not others:
        return []
    named = ", ".join(others[:_MOST_NAMED]) + (f" and {len(others) - _MOST_NAMED} more" * (len(others) > _MOST_NAMED))
    return [f"requests cannot send {named}, which `forward` does not need; to change: `--input NAME:DTYPE:SHAPE`"]


def _length_note(network: nn.Module, inputs: dict[str, Input], inferred: Set[str]) -> list[str]:
    """A note if longer sequences work too. All sequences are lengthened together, since they have the same length."""
    dimensions = {name: tensor.sequence for name, tensor in inputs.items() if tensor.sequence is not None}
    dimensions |= {name: 0 for name, tensor in inputs.items() if tensor.mask_of in dimensions}
    name = next((name for name in dimensions if name in inferred), None)
    if name is None:
        return []
    longer = {key: _doubled(tensor, dimensions[key]) if key in dimensions else tensor for key, tensor in inputs.items()}
    if not _works(network, longer):
        return []
    return [f"`{name}`: {inputs[name].shape[dimensions[name]]} is a guess, the model takes longer ones as well"]


def _doubled(tensor: Input, at: int) -> Input:
    return replace(tensor, shape=(*tensor.shape[:at], 2 * tensor.shape[at], *tensor.shape[at + 1 :]))


def _works(network: nn.Module, inputs: dict[str, Input]) -> bool:
    generator = torch.Generator().manual_seed(0)
    return try_inputs(network, [tensor.values(1, generator) for tensor in inputs.values()]).outputs is not None
