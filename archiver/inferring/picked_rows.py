"""The rows of a table that a model picks by an integer input, such as the words of an embedding."""

from collections.abc import Iterator
from typing import Any

import torch

# Operations whose results are the same numbers as their first argument.
_SAME_NUMBERS = (
    *("aten._to_copy.", "aten.to.", "aten.clone.", "aten.contiguous.", "aten.view.", "aten.reshape.", "aten.flatten."),
    *("aten.expand.", "aten.permute.", "aten.squeeze.", "aten.transpose.", "aten.unsqueeze."),
)
# Operations with a table, its dimension, and the numbers of places there.
_BY_DIMENSION = ("aten.gather.", "aten.index_add.", "aten.index_select.", "aten.scatter.", "aten.scatter_add.")


def picked_rows(node: torch.fx.Node) -> range | None:
    """The numbers by which an input of a graph may pick rows of all its tables; None if it picks none."""
    ranges = [rows for user in node.users for rows in _rows(user, node)]
    return range(max(rows.start for rows in ranges), min(rows.stop for rows in ranges)) if ranges else None


def _rows(user: torch.fx.Node, node: torch.fx.Node) -> Iterator[range]:
    operation = str(user.target)
    arguments: Any = user.args
    if operation.startswith(_SAME_NUMBERS) and arguments[0] is node:
        yield from filter(None, [picked_rows(user)])
    elif "embedding" in operation and len(arguments) > 1 and arguments[1] is node:
        yield from _sizes(arguments[0], 0)
    elif operation.startswith(_BY_DIMENSION) and arguments[2] is node:
        yield from _sizes(arguments[0], arguments[1])
    elif operation == "aten.index.Tensor":
        places = [place for place, index in enumerate(arguments[1]) if index is node]
        # As in Python, negative numbers count from the end.
        yield from (range(-rows.stop, rows.stop) for place in places for rows in _sizes(arguments[0], place))
    elif operation == "aten.one_hot.default" and arguments[0] is node and len(arguments) > 1:
        yield range(arguments[1])


def _sizes(table: Any, dimension: Any) -> Iterator[range]:
    """The numbers of the rows in a dimension of a table; none if their count is dynamic."""
    if isinstance(size := table.meta["val"].shape[dimension], int):
        yield range(size)
