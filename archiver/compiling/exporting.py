"""From a graph to programs: for every batch and length that it serves, or for one of them."""

from __future__ import annotations

import io
import os
import re
from contextlib import redirect_stderr
from pathlib import Path

import torch
from torch import nn
from torch.export import ExportedProgram

from archiver.compiling.surroundings import quiet
from archiver.encoders import EncoderGraph
from archiver.inputs import Rows
from archiver.lengths import of_length, varying_dimensions
from archiver.sources import Source
from config.errors import SourceError
from config.spec import Spec
from handlers.lengths import SHORTEST
from handlers.networks import TensorGraph

# torch names the line where it stopped in two ways.
_USER_FRAME = re.compile(r'File "([^"]+)", line (\d+), in \w+(?:, code:|\n) *(.+)')
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def trace(spec: Spec, graph: nn.Module, inputs: tuple[torch.Tensor, ...], source: Source) -> ExportedProgram:
    """The graph as a program for every batch up to the largest and every length, or for the one batch it can have."""
    sizes, only_batch = spec.model.batch_sizes, source.only_batch
    if only_batch is not None and sizes != (only_batch,):
        raise SourceError(
            f"{spec.file}: `model.batch_sizes`: got {list(sizes)}, "
            f"but `{spec.model.source}` was exported for {only_batch} rows",
            hint=f"batch_sizes: [{only_batch}], or export it with a dynamic first dimension",
        )
    shapes = _any_size(spec, inputs, source)
    if shapes is not None and isinstance(graph, (TensorGraph, EncoderGraph)):
        shapes = (shapes,)  # it takes its inputs as *inputs, one tuple
    try:
        # What torch could not export it also prints, as a graph of its own names.
        with torch.no_grad(), quiet(), redirect_stderr(io.StringIO()):
            return torch.export.export(graph, inputs, dynamic_shapes=shapes, strict=True)
    except Exception as err:
        raise _not_exported(spec, err) from err


def _not_exported(spec: Spec, err: Exception) -> SourceError:
    """What torch could not export, at the line of the user's own that it stopped at, and what to do."""
    text, sizes = _COLOURS.sub("", str(err)), spec.model.batch_sizes
    reason = next((line.strip() for line in text.splitlines() if line.strip()), type(err).__name__)
    if "ConstraintViolation" in type(err).__name__ or "Constraints violated" in text:
        hint = f"its batch is fixed by the model's code; `batch_sizes: [{max(sizes)}]` packages that one"
        return SourceError(f"{spec.file}: `model.source`: cannot be exported: {reason}", hint=hint)
    if not spec.model.source.partition(":")[0].endswith(".py"):
        hint = "export the model yourself and use `source: ./program.pt2`"
        return SourceError(f"{spec.file}: `model.source`: cannot be exported: {reason}", hint=hint)
    hint = "compile: eager, which runs this file as it is; or decide with `torch.where` or `torch.cond`, and keep `aot`"
    folder = spec.path(spec.model.source.partition(":")[0]).parent
    # The innermost last: torch's own frames lie elsewhere.
    for file, line, code in reversed(_USER_FRAME.findall(text)):
        if Path(file).is_relative_to(folder.resolve()) and "site-packages" not in file:
            place = f"{os.path.normpath(folder / Path(file).relative_to(folder.resolve()))}:{line}"
            return SourceError(f"{place}: `{code.strip()}` cannot be exported: {reason}", hint=hint)
    return SourceError(f"{spec.file}: `model.source`: cannot be exported: {reason}", hint=hint)


def export_for(source: Source, module: nn.Module, inputs: Rows, batch: int, length: int | None) -> ExportedProgram:
    """The program for one batch, and for one length unless it takes every one."""
    rows = tuple(value[:batch].contiguous() for value in of_length(source, inputs, length))
    with torch.no_grad(), quiet():
        return torch.export.export(module, rows, dynamic_shapes=_any_length(source, len(rows)))


def _any_size(spec: Spec, inputs: tuple[torch.Tensor, ...], source: Source) -> tuple[object, ...] | None:
    """The dynamic dimensions of every input: the batch, and the one that varies from request to request; None when
    there is only one batch size and length."""
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


def _any_length(source: Source, arguments: int) -> tuple[dict[int, object], ...] | None:
    """The dynamic dimensions of an artifact for one batch size."""
    if source.lengths is None or not source.lengths.dynamic:
        return None
    length = torch.export.Dim("length", min=SHORTEST, max=max(source.lengths.buckets))
    dynamic: tuple[dict[int, object], ...] = tuple({} for _ in range(arguments))
    for argument, dimension in varying_dimensions(source):
        dynamic[argument][dimension] = length
    return dynamic


def export_again(spec: Spec, module: nn.Module, inputs: tuple[torch.Tensor, ...], source: Source) -> ExportedProgram:
    """A traced or quantised module as a program for every batch it has to serve."""
    with torch.no_grad(), quiet():
        return torch.export.export(module, inputs, dynamic_shapes=_any_size(spec, inputs, source))
