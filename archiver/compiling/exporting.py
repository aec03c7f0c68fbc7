"""Exports a graph as a program: one for every batch size and length that it serves, or one for a single shape."""

import io
import os
import re
from contextlib import redirect_stderr
from pathlib import Path

import torch
from torch import nn
from torch.export import ExportedProgram

from marina.archiver.calibration import Rows
from marina.archiver.compiling.environment import quiet
from marina.archiver.encoders import EncoderGraph
from marina.archiver.lengths import cut_to_length, varying_dimensions
from marina.archiver.sources import Source
from marina.archiver.weights.whole_module import is_scripted, traced
from marina.config.errors import SourceError
from marina.config.spec import Spec
from marina.handlers.lengths import SHORTEST
from marina.handlers.networks import TensorGraph

# torch has two formats for the line where it stopped.
_USER_FRAME = re.compile(r'File "([^"]+)", line (\d+), in \w+(?:, code:|\n) *(.+)')
_TYPE_CHECK = torch.ops.aten._assert_tensor_metadata.default
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def check_batch_sizes(spec: Spec, source: Source) -> None:
    """Raises SourceError if an exported program does not take the batch sizes of the spec."""
    sizes, only_batch = spec.model.batch_sizes, source.only_batch
    if only_batch is not None and sizes != (only_batch,):
        raise SourceError(
            f"{spec.file}: `model.batch_sizes`: got {list(sizes)}, "
            f"but `{spec.model.source}` was exported for {only_batch} rows",
            hint=f"batch_sizes: [{only_batch}], or export it with a dynamic first dimension",
        )


def export_graph(spec: Spec, graph: nn.Module, inputs: tuple[torch.Tensor, ...], source: Source) -> ExportedProgram:
    """Exports the graph for every batch up to the largest and for every length, or for the only batch it supports."""
    shapes = _dynamic_batch_and_length(spec, inputs, source)
    if shapes is not None and isinstance(graph, (TensorGraph, EncoderGraph)):
        shapes = (shapes,)  # its `forward` takes `*inputs`, which count as one tuple
    try:
        # When torch cannot export something it also prints the graph, with names that mean nothing to a user.
        with torch.no_grad(), quiet(), redirect_stderr(io.StringIO()):
            if is_scripted(source.network):
                graph = traced(graph, inputs)
            program = torch.export.export(graph, inputs, dynamic_shapes=shapes, strict=True)
    except Exception as err:
        raise _export_error(spec, source, err) from err
    _drop_type_checks(program)
    return program


def _drop_type_checks(program: ExportedProgram) -> None:
    """Removes the checks of types that torch adds: in a model that uses `torch.autocast`, they expect the types that
    values have without it."""
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.find_nodes(op="call_function", target=_TYPE_CHECK):
                module.graph.erase_node(node)
            module.recompile()


def _export_error(spec: Spec, source: Source, err: Exception) -> SourceError:
    """Names the line of the user's code that torch could not export, and a way out."""
    text = _COLOURS.sub("", str(err))
    reason = next((line.strip() for line in text.splitlines() if line.strip()), type(err).__name__)
    hint = "compile: eager, which runs this file as it is; or decide with `torch.where` or `torch.cond`, and keep `aot`"
    if not spec.model.source.partition(":")[0].endswith(".py"):
        hint = "export the model yourself and use `source: ./program.pt2`"
    if spec.model.encodes:
        hint = "use a model of another architecture: torch cannot compile this one's code"
    if "ConstraintViolation" in type(err).__name__ or "Constraints violated" in text:
        reason = "the model's code fixes the batch size"
        hint = f"`batch_sizes: [{max(spec.model.batch_sizes)}]` packages that one"
        if source.lengths is not None and "length" in text.partition("!")[0]:
            reason = "the model's code does not treat all lengths alike"
            hint = f"`buckets: [{source.lengths.buckets[-1]}]`, to which every request is padded; or compile: eager"
    folder = spec.path(spec.model.source.partition(":")[0]).parent
    # From the innermost frame outwards, skipping torch's own.
    for file, line, code in reversed(_USER_FRAME.findall(text)):
        if Path(file).is_relative_to(folder.resolve()) and "site-packages" not in file:
            place = f"{os.path.normpath(folder / Path(file).relative_to(folder.resolve()))}:{line}"
            return SourceError(f"{place}: `{code.strip()}` cannot be exported: {reason}", hint=hint)
    return SourceError(f"{spec.file}: `model.source`: `{spec.model.source}` cannot be exported: {reason}", hint=hint)


def export_shape(source: Source, module: nn.Module, inputs: Rows, batch: int, length: int | None) -> ExportedProgram:
    """Exports the program for one batch size, and for one length unless it takes every length."""
    rows = tuple(value[:batch].contiguous() for value in cut_to_length(source, inputs, length))
    with torch.no_grad(), quiet():
        return torch.export.export(module, rows, dynamic_shapes=_dynamic_length(source, len(rows)))


def _dynamic_batch_and_length(
    spec: Spec, inputs: tuple[torch.Tensor, ...], source: Source
) -> tuple[object, ...] | None:
    """The dynamic dimensions of every input: the batch, and the one that varies from request to request. None if there
    is only one batch size and one length."""
    sizes, lengths = spec.model.batch_sizes, source.lengths
    dynamic: list[dict[int, object]] = [{} for _ in inputs]
    if len(sizes) > 1:
        batch = torch.export.Dim("batch", min=1, max=max(sizes))
        for dimensions in dynamic:
            dimensions[0] = batch
    if lengths is not None and (lengths.dynamic or len(lengths.buckets) > 1):
        shortest = SHORTEST if lengths.dynamic else min(lengths.buckets)
        length = torch.export.Dim("length", min=shortest, max=max(lengths.buckets))
        for argument, dimension in varying_dimensions(source):
            dynamic[argument][dimension] = length
    return tuple(dynamic) if any(dynamic) else None


def _dynamic_length(source: Source, arguments: int) -> tuple[dict[int, object], ...] | None:
    """The dynamic dimensions of an artifact for one batch size: its length, or none."""
    if source.lengths is None or not source.lengths.dynamic:
        return None
    length = torch.export.Dim("length", min=SHORTEST, max=max(source.lengths.buckets))
    dynamic: tuple[dict[int, object], ...] = tuple({} for _ in range(arguments))
    for argument, dimension in varying_dimensions(source):
        dynamic[argument][dimension] = length
    return dynamic


def reexport(spec: Spec, module: nn.Module, inputs: tuple[torch.Tensor, ...], source: Source) -> ExportedProgram:
    """Exports an exported or quantised module once more, for every batch and length that it has to serve."""
    with torch.no_grad(), quiet():
        return torch.export.export(module, inputs, dynamic_shapes=_dynamic_batch_and_length(spec, inputs, source))
