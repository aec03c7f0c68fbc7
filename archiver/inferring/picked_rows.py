"""The rows of tables that a model picks by its inputs, such as the words of an embedding: which numbers exist."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, repeat
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

# Operators that only rearrange numbers, and those that only change their type.
_MOVING = {
    *("alias", "cat", "detach", "diagonal", "expand", "flip", "permute", "repeat", "roll", "select", "slice", "split"),
    *("split_with_sizes", "squeeze", "stack", "t", "transpose", "unbind", "unfold", "unsqueeze"),
}
_RESHAPING, _COPYING = {"_reshape_alias", "_unsafe_view", "view"}, {"_to_copy", "clone"}
_SHIFTING = {"add": 1, "add_": 1, "sub": -1, "sub_": -1}
# Operators with a table, its dimension, and the numbers of rows there.
_BY_DIMENSION = {"gather", "index_add", "index_copy", "index_fill", "index_select", "scatter", "scatter_add"}
# Operators with a table, and the numbers of rows in each of its dimensions; as in Python, -1 is the last one.
_BY_ALL = {"index", "index_put"}
# The place of a number that no input has, and a limit that is none.
_NOWHERE, _FAR = -1, 2**62


class RowLimits(NamedTuple):
    """The numbers by which rows can be picked, from `least` to `high`; those below `low` count from a table's end."""

    least: int
    low: int
    high: int


class PickedRows:
    """The limits of each value of an input, for one row of it."""

    def __init__(self, least: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> None:
        self._least, self._low, self._high = least, low, high

    def columns(self, varies: int | None) -> list[RowLimits | None]:
        """The limits of each column, the last dimension, or only one for all if they are the same or if the last
        dimension is the one that varies; None for no limit."""
        last = self._high.shape[-1] if self._high.ndim and varies != self._high.ndim - 1 else 1
        least, low, high = (limits.reshape(-1, last) for limits in (self._least, self._low, self._high))
        triples = zip(least.amax(0).tolist(), low.amax(0).tolist(), high.amin(0).tolist(), strict=True)
        columns = [RowLimits(*limits) if limits[2] < _FAR else None for limits in triples]
        return columns if len(set(columns)) > 1 else columns[:1]


def find_picked_rows(run: Callable[[list[torch.Tensor]], object], values: Sequence[torch.Tensor]) -> list[PickedRows]:
    """Runs a model on these values, and follows each input to the tables from which it picks rows."""
    tracker = _NumberTracker(values)
    # If it fails on such values, the packager reports that; the tables up to there are known.
    with suppress(Exception), torch.no_grad(), tracker:
        run(list(values))
    return tracker.picked()


class _Numbers(NamedTuple):
    """The numbers of a tensor: the place of each among those of all inputs, and what was added to it."""

    places: torch.Tensor
    shift: torch.Tensor


class _NumberTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    supports_higher_order_operators = True

    def __init__(self, values: Sequence[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._shapes = [value.shape[1:] for value in values]
        sizes = [shape.numel() for shape in self._shapes]
        self._limits = [torch.full((sum(sizes),), limit) for limit in (-_FAR, -_FAR, _FAR)]
        # The tensors that come from an input, each with its numbers if these are known.
        self._known: Any = WeakTensorKeyDictionary()
        for value, size, end in zip(values, sizes, accumulate(sizes), strict=True):
            places = torch.arange(end - size, end).view(1, *value.shape[1:]).expand(value.shape)
            self._known[value] = _Numbers(places, torch.zeros_like(places))

    def picked(self) -> list[PickedRows]:
        sizes = [shape.numel() for shape in self._shapes]
        parts = zip(*(torch.split(limits, sizes) for limits in self._limits), strict=True)
        return [
            PickedRows(*(limits.view(shape) for limits in part))
            for part, shape in zip(parts, self._shapes, strict=True)
        ]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func).removeprefix("aten.").partition(".")[0]
        for index, table, dimension in _picks(name, args):
            if (numbers := self._numbers(index)) is not None:
                self._limit(numbers, table.shape[dimension], wraps=name.removesuffix("_") in _BY_ALL)
        followed = self._follow(func, name, args) if not kwargs or name in _COPYING else None
        output = func(*args, **(kwargs or {}))
        if any(map(self._is_known, pytree.tree_leaves((args, kwargs)))):
            leaves = pytree.tree_leaves(output)
            for value, numbers in zip(leaves, followed or repeat(None, len(leaves)), strict=True):
                if isinstance(value, torch.Tensor):
                    self._known[value] = numbers
        return output

    def _numbers(self, value: object) -> _Numbers | None:
        return self._known.get(value) if self._is_known(value) else None

    def _is_known(self, value: object) -> bool:
        return isinstance(value, torch.Tensor) and value in self._known

    def _limit(self, numbers: _Numbers, rows: int, *, wraps: bool) -> None:
        is_input = numbers.places != _NOWHERE
        places, shift = numbers.places[is_input], numbers.shift[is_input]
        least, low = -shift - (rows if wraps else 0), -shift.clamp(min=0) if wraps else -shift
        of_each = (least, low, rows - 1 - shift)
        for limits, of_table, how in zip(self._limits, of_each, ("amax", "amax", "amin"), strict=True):
            limits.scatter_reduce_(0, places, of_table, how)

    def _follow(self, func: Any, name: str, args: Any) -> Sequence[_Numbers | None] | None:
        """The numbers of each output, if the operator moves numbers of inputs or adds constants to them."""
        sources = [numbers for value in pytree.tree_leaves(args) if (numbers := self._numbers(value)) is not None]
        if not sources or func is torch.ops.aten.view.dtype:
            return None
        if name in _COPYING:
            return sources
        if name in _SHIFTING:
            first, second = args[:2] if self._numbers(args[0]) or _SHIFTING[name] < 0 else args[1::-1]
            shift = sources[0].shift + _SHIFTING[name] * torch.as_tensor(second).cpu()
            is_constant = self._numbers(first) and not self._is_known(second) and not shift.is_floating_point()
            return [_Numbers(sources[0].places.expand(shift.shape), shift)] if is_constant else None
        if name in _RESHAPING:
            func, args = torch.reshape, args[:2]
        elif name not in _MOVING:
            return None
        moved = [pytree.tree_leaves(func(*self._replaced(args, part))) for part in range(2)]
        return [_Numbers(*pair) for pair in zip(*moved, strict=True)]

    def _replaced(self, args: Any, part: int) -> Any:
        """An operator's arguments with places (part 0) or shifts (part 1) instead of numbers."""

        def replace(value: torch.Tensor) -> torch.Tensor:
            numbers = self._numbers(value)
            return torch.full(value.shape, (_NOWHERE, 0)[part]) if numbers is None else numbers[part]

        return pytree.tree_map_only(torch.Tensor, replace, args)


def _picks(name: str, args: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor, int]]:
    """The numbers by which an operator picks rows of a table, the table, and the dimension of its rows."""
    if "embedding" in name:
        yield args[1], args[0], 0
    elif name.removesuffix("_") in _BY_DIMENSION:
        yield args[2], args[0], args[1]
    elif name.removesuffix("_") in _BY_ALL:
        for place, index in enumerate(args[1]):
            if index is not None and index.dtype not in (torch.bool, torch.uint8):
                yield index, args[0], place
