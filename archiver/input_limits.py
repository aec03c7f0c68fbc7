"""The numbers that a model's inputs allow: only those of rows that its tables have, and only those that it answers."""

import copy
from collections.abc import Callable, Collection
from functools import partial

import torch
from torch import nn

from marina.archiver.calibration import Rows
from marina.archiver.graph import examples
from marina.archiver.inferring import MOST_TRIED, PickedRows, RowLimits, find_picked_rows, largest_working, try_inputs
from marina.archiver.lengths import request_arguments
from marina.archiver.rows import eager_runner
from marina.archiver.sources import Source
from marina.config.errors import SourceError, listed
from marina.config.record import Port
from marina.config.spec import Spec


def limited_inputs(spec: Spec, source: Source, graph: nn.Module) -> tuple[Port, ...]:
    """The inputs, limited to the rows of the tables from which the model picks by them. Another number, from a hostile
    client, may end the worker. Raises SourceError if the spec allows one."""
    if spec.model.handler != "tensor":
        return source.inputs
    picked = find_picked_rows(eager_runner("", graph), examples(spec, source, max(spec.model.batch_sizes)))
    pairs = zip(request_arguments(source), source.inputs, strict=True)
    return tuple(_limited(spec, port, picked[place]) for place, port in pairs)


def _limited(spec: Spec, port: Port, picked: PickedRows) -> Port:
    columns = picked.columns(port.varies)
    if len(columns) > 1:
        return port.model_copy(update={"columns": tuple(_limits(port, rows) for rows in columns)})
    if (rows := columns[0]) is None:
        return port
    for name, value in (("min", port.min), ("max", port.max)):
        if value is not None and not rows.least <= value <= rows.high:
            text = f"got {value:g}, but the model picks rows of a table by it, allowed: {rows.least} to {rows.high}"
            raise SourceError(f"{spec.place('model', 'inputs', port.name, name)}: {text}")
    low, high = _limits(port, rows)
    return port.model_copy(update={"min": low, "max": high})


def _limits(port: Port, rows: RowLimits | None) -> tuple[float | None, float | None]:
    """The limits of a column: those of its input in the spec, but no wider than those of its tables."""
    if rows is None:
        return port.min, port.max
    low = rows.low if port.min is None else max(port.min, rows.least)
    return low, rows.high if port.max is None else min(port.max, rows.high)


def check_limits(spec: Spec, source: Source, graph: nn.Module, rows: Rows) -> None:
    """Raises SourceError if the model, which answers these rows, fails at the smallest or at the largest whole numbers
    that its inputs allow, for example because it computes from them which rows of a table it picks. Compiled code may
    end the worker there."""
    if spec.model.handler != "tensor":
        return
    # On a GPU, a row that no table has would break everything that runs there afterwards.
    graph = copy.deepcopy(graph).cpu() if rows[0].is_cuda else graph
    values = [value.cpu() for value in rows]
    pairs = zip(request_arguments(source), source.inputs, strict=True)
    whole = {place: port for place, port in pairs if port.dtype in ("int32", "int64", "uint8")}

    def failure(places: Collection[int], end: int, bound: int | None = None) -> str | None:
        """Why the model fails if these inputs hold the smallest (end 0) or the largest (1) numbers within the bound."""
        tried = [
            _extreme(whole[at], end, bound).expand_as(value).clone() if at in places else value
            for at, value in enumerate(values)
        ]
        result = try_inputs(graph, tried)
        return None if result.answered else result.error

    if failure((), 0):
        return  # a program for a GPU, which no CPU runs
    for place, port in whole.items():
        _check_ends(spec, port, partial(failure, [place]))
    if error := failure(whole, 1):
        text = f"the model fails if {listed(port.name for port in whole.values())} all are the largest that they allow"
        hint = "lower a `max`, or limit in `forward` by `clamp` what is computed from them"
        raise SourceError(f"{spec.file}: `model.inputs`: {text}: {error}", hint=hint)


def _check_ends(spec: Spec, port: Port, failure: Callable[..., str | None]) -> None:
    """Raises SourceError if the model fails at an end of an input's numbers, or at a number nearer to 0, because what
    it computes from the ends may overflow."""
    failed = [(end, bound) for end, bound in ((0, -1), (0, None), (1, MOST_TRIED), (1, None)) if failure(end, bound)]
    if not failed:
        return
    limits = []
    if any(end == 0 for end, _ in failed):
        limits += [f"`min: {number}`" for number in (0, 1) if not failure(0, number)][:1]
    if any(end == 1 for end, _ in failed):
        most = largest_working(lambda number: not failure(1, number), MOST_TRIED)
        limits += [] if failure(1, most) else [f"`max: {most}`"]
    at = int(_extreme(port, *failed[0]).flatten()[0])
    raise SourceError(
        f"{spec.place('model', 'inputs', port.name)}: the model fails at {at}, which it allows: {failure(*failed[0])}",
        hint=f"set {' and '.join(limits) or 'its `min` and `max`'}, or limit it in `forward` by `clamp`",
    )


def _extreme(port: Port, end: int, bound: int | None = None) -> torch.Tensor:
    """The smallest (end 0) or the largest (1) number that each column allows, but not beyond the bound."""
    dtype = getattr(torch, port.dtype)
    info = torch.iinfo(dtype)
    numbers = []
    for column in port.by_column() or [port]:
        limit = (column.min, column.max)[end]
        number = (info.min, info.max)[end] if limit is None else max(info.min, min(info.max, int(limit)))
        numbers.append(number if bound is None else (max, min)[end](number, bound))
    return torch.tensor(numbers, dtype=dtype)
