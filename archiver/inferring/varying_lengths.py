"""Finds out whether a model answers a padded sequence as it answers the sequence alone, so that lengths may vary."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from marina.archiver.inferring.inferred import Input
from marina.archiver.inferring.trial import equal, try_inputs
from marina.handlers.lengths import SHORTEST

_LEAST_MAX = 4


def mark_varying_lengths(
    network: nn.Module, inputs: dict[str, Input], *, fixed: bool
) -> tuple[dict[str, Input], list[str]]:
    """The inputs with those marked that may vary in length, and a note if they may not. `fixed` leaves them alone,
    because the user has decided."""
    names, guess = list(inputs), list(inputs.values())
    sequences = [at for at, tensor in enumerate(guess) if tensor.sequence is not None]
    masks = [at for at, name in enumerate(names) if "mask" in name and at not in sequences]
    lengths = {guess[at].shape[guess[at].sequence or 0] for at in sequences}
    if (
        fixed
        or len(lengths) != 1
        or len(masks) > 1
        or any(len(guess[at].shape) != 1 for at in masks)
        or (length := lengths.pop()) < _LEAST_MAX
    ):
        return inputs, []
    if all(_padding_is_neutral(network, guess, sequences, masks, short, length) for short in (length // 2, SHORTEST)):
        for at in sequences:
            guess[at] = replace(guess[at], varies=True)
        for at in masks:
            guess[at] = replace(guess[at], mask_of=names[sequences[0]])
        return dict(zip(names, guess, strict=True)), []
    for at in sequences:
        guess[at] = replace(guess[at], varies=False)
    named = names[sequences[0]]
    why = "although it takes a mask" if masks else "and it takes no argument called `mask`"
    note = f"`{named}`: every request must have exactly {length}: padding changes the model's answers, {why}"
    return dict(zip(names, guess, strict=True)), [note]


def limit_length_arguments(
    network: nn.Module, inputs: dict[str, Input], counts: Sequence[str]
) -> tuple[dict[str, Input], list[str]]:
    """The inputs with `counts`, the arguments that say how much of a sequence is used, limited to its length; and a
    note for each."""
    sequence = next((name for name, tensor in inputs.items() if tensor.sequence is not None), None)
    if sequence is None:
        return inputs, [
            f"`{name}`: 1 is a guess, and the spec allows no larger value: raise its `max`" for name in counts
        ]
    length = inputs[sequence].shape[inputs[sequence].sequence or 0]
    longer = {name: replace(tensor, most=length) if name in counts else tensor for name, tensor in inputs.items()}
    generator = torch.Generator().manual_seed(0)
    values = [tensor.values(2, generator, least=1, most=None) for tensor in longer.values()]
    if try_inputs(network, values).outputs is None:
        return inputs, [f"`{name}`: values beyond 1 fail" for name in counts]
    padding = f"every request must itself pad `{sequence}` to {length}"
    return longer, [f"`{name}`: 1 to {length}, how much of `{sequence}` is used; {padding}" for name in counts]


def _padding_is_neutral(
    network: nn.Module, guess: list[Input], sequences: list[int], masks: list[int], short: int, length: int
) -> bool:
    """Whether the beginning of a sequence is answered the same alone and padded to the full length."""
    generator = torch.Generator().manual_seed(0)
    # Without zeros, because the model may treat 0 as padding.
    whole = [tensor.values(1, generator, least=1, most=None) for tensor in guess]
    alone, padded = list(whole), list(whole)
    for at in sequences:
        dimension = (guess[at].sequence or 0) + 1
        alone[at] = whole[at].narrow(dimension, 0, short).contiguous()
        padded[at] = whole[at].clone()
        padded[at].narrow(dimension, short, length - short).zero_()
    for at in masks:
        alone[at] = torch.ones(1, short, dtype=whole[at].dtype)
        padded[at] = torch.cat([alone[at], torch.zeros(1, length - short, dtype=whole[at].dtype)], dim=1)
    expected, got = try_inputs(network, alone).outputs, try_inputs(network, padded).outputs
    if expected is None or got is None:
        return False
    cut = []
    for left, right in zip(expected, got, strict=True):
        longer = [at for at, (a, b) in enumerate(zip(left.shape, right.shape, strict=False)) if a != b]
        if (
            left.ndim != right.ndim
            or len(longer) > 1
            or any((left.shape[at], right.shape[at]) != (short, length) for at in longer)
        ):
            return False
        cut.append(right.narrow(longer[0], 0, short) if longer else right)
    return equal(expected, tuple(cut))
