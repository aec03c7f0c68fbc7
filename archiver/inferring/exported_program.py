"""Finds the inputs of an exported program, which names them itself, except for the size of unlimited dimensions."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import torch
from torch import nn
from torch.export import ExportedProgram

from marina.archiver.inferring.arguments import GivenInput
from marina.archiver.inferring.inferred import InferredInputs, Input
from marina.archiver.inferring.picked_rows import find_picked_rows
from marina.archiver.inferring.trial import limit_numbers, try_inputs
from marina.archiver.inferring.varying_lengths import mark_varying_lengths
from marina.config.errors import InputError, listed
from marina.config.sections import Dtype

_LONGEST = 512


def find_program_inputs(
    program: ExportedProgram, network: nn.Module, given: Sequence[GivenInput], only_batch: int | None
) -> InferredInputs:
    """The program's inputs; of each, one dimension may be dynamic and then varies. The network is that of the
    program."""
    names = [name for name in program.graph_signature.user_inputs if isinstance(name, str)]
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    given_tensors = {value.name: value.tensor for value in given}
    if unknown := sorted(set(given_tensors) - set(names)):
        raise InputError(f"`--input`: got `{unknown[0]}`, allowed: {listed(names)}, the inputs of the program")
    notes: list[str] = []
    inputs: dict[str, Input] = {}
    for name in names:
        value = nodes[name].meta["val"]
        inputs[name] = _input(program, name, value, notes, known=name in given_tensors)
        if name in given_tensors:
            sides = given_tensors[name].shape
            place = next((at for at, side in enumerate(sides) if not isinstance(side, int)), None)
            most = None if given_tensors[name].max is None else int(given_tensors[name].max or 0)
            shape = given_tensors[name].largest_shape
            inputs[name] = Input(shape, given_tensors[name].dtype, place, most=most, varies=place is not None)
    inputs = _limited(network, inputs, only_batch or 2)
    # A mask is no sequence of its own: it varies with the input that it masks.
    tried = {name: replace(tensor, sequence=None) if "mask" in name else tensor for name, tensor in inputs.items()}
    inputs, more = mark_varying_lengths(
        network, tried, fixed=bool(given) or not any(tensor.varies for tensor in tried.values())
    )
    generator = torch.Generator().manual_seed(0)
    result = try_inputs(network, [tensor.values(only_batch or 2, generator) for tensor in inputs.values()])
    return InferredInputs(inputs, result.shapes, only_batch, result.names, (*notes, *more))


def _input(program: ExportedProgram, name: str, value: torch.Tensor, notes: list[str], *, known: bool) -> Input:
    sides = list(value.shape[1:])
    free = [at for at, side in enumerate(sides) if not isinstance(side, int)]
    dtype = str(value.dtype).removeprefix("torch.")
    if dtype not in get_args(Dtype):
        text = f"`--source`: the program takes `{name}` as {dtype}, allowed: {listed(get_args(Dtype))}"
        raise InputError(text, hint=f"export a model that takes float32 or int64, and itself makes it {dtype}")
    if len(free) > 1 and not known:
        shape = ",".join(str(side) if isinstance(side, int) else "64" for side in sides)
        text = f"`--input`: missing for `{name}`: {len(free)} of its dimensions are dynamic, and only one may vary"
        raise InputError(text, hint=f"--input {name}:{dtype}:{shape}, with the sizes to serve")
    shape_of = []
    for at, side in enumerate(sides):
        if at in free:
            limit = _limit(program, side)
            if limit is None and not known:
                notes.append(f"`{name}`: the program has no largest size; requests up to {_LONGEST} are accepted")
            shape_of.append(limit or _LONGEST)
        else:
            shape_of.append(int(side))
    return Input(tuple(shape_of), dtype, free[0] if free else None, varies=bool(free))


def _limited(network: nn.Module, inputs: dict[str, Input], batch: int) -> dict[str, Input]:
    """The inputs, limited to the rows of the tables from which the program picks by them, or to what it takes."""
    generator = torch.Generator().manual_seed(0)
    values = [tensor.values(batch, generator) for tensor in inputs.values()]
    limited = dict(inputs)
    picked = find_picked_rows(lambda given: network(*given), values)
    for at, (name, tensor) in enumerate(inputs.items()):
        rows, *others = picked[at].columns(tensor.sequence if tensor.varies else None)
        if tensor.most is not None or others:
            continue
        if rows is not None:
            limited[name] = replace(tensor, least=rows.low, most=rows.high)
        elif tensor.dtype in ("int32", "int64") and "mask" not in name:
            limited[name] = limit_numbers(network, values, at, tensor)
        if limited[name].most is not None:
            values[at] = torch.full_like(values[at], limited[name].most or 0)
    return limited


def _limit(program: ExportedProgram, side: Any) -> int | None:
    """The `max` of a dynamic dimension, as `Dim(…, max=…)` set it; None if it has no limit."""
    bounds = program.range_constraints.get(side.node.expr)
    try:
        upper = int(bounds.upper) if bounds is not None else None
    except (OverflowError, TypeError, ValueError):
        return None
    return upper if upper is not None and upper < 2**31 else None
