"""The rows of a table that a model picks by an integer input, such as the words of an embedding."""

from __future__ import annotations

from typing import Any

import torch

# Operations whose results are the same numbers as their first argument.
_SAME_NUMBERS = ("aten._to_copy.", "aten.to.", "aten.clone.", "aten.contiguous.", "aten.view.", "aten.reshape.")


def picked_rows(node: torch.fx.Node) -> int | None:
    """How many rows the smallest table has of which an input of a graph picks rows; None if it picks none."""
    sizes = [size for user in node.users if isinstance(size := _rows(user, node), int)]
    return min(sizes, default=None)


def _rows(user: torch.fx.Node, node: torch.fx.Node) -> object:
    operation, arguments = str(user.target), user.args
    if operation.startswith(_SAME_NUMBERS) and arguments[0] is node:
        return picked_rows(user)
    if "embedding" in operation and len(arguments) > 1 and arguments[1] is node:
        return _size(arguments[0], 0)
    if operation == "aten.index_select.default" and arguments[2] is node:
        return _size(arguments[0], arguments[1])
    if operation == "aten.one_hot.default" and arguments[0] is node and len(arguments) > 1:
        return arguments[1]
    return None


def _size(table: Any, dimension: Any) -> object:
    return table.meta["val"].shape[dimension]
