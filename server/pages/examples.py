"""Example request bodies for the OpenAPI description, made from the record of the package."""

import math
from typing import Any

from marina.config.record import Port, Record
from marina.server.pages.door_pages import DATATYPES

# A longer example would tell the reader no more.
_MAX_VALUES = 200
# One grey pixel.
PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNoAAAAggCBd81ytgAAAABJRU5ErkJggg=="
TEXT = "Hello."


def body_example(record: Record) -> Any:
    """A JSON body; None if there is no short example."""
    if record.takes is not None:
        return record.takes.example
    if record.handler == "image":
        return {"image": PICTURE}
    if record.encoding is not None:
        return {"query": TEXT, "documents": [TEXT]} if record.encoding.task == "rerank" else {"text": TEXT}
    if record.handler == "tensor" and _is_short(record):
        return {port.name: _fill(port, _shape(port)) for port in record.inputs}
    return None


def tensors_example(record: Record) -> list[dict[str, Any]] | None:
    """The same as V2 tensors of one row; None if there is no short example."""
    if record.handler == "image":
        return [{"name": "image", "datatype": "BYTES", "shape": [1], "data": [PICTURE]}]
    if record.encoding is not None:
        names = ("query", "documents") if record.encoding.task == "rerank" else ("text",)
        return [{"name": name, "datatype": "BYTES", "shape": [1], "data": [TEXT]} for name in names]
    if not record.inputs or not _is_short(record):
        return None
    return [
        {
            "name": port.name,
            "datatype": DATATYPES[port.sent_as],
            "shape": [1, *_shape(port)],
            "data": _fill(port, (math.prod(_shape(port)),)),
        }
        for port in record.inputs
    ]


def _shape(port: Port) -> tuple[int, ...]:
    """The port's shape, with size 1 in the dimension that varies."""
    return tuple(1 if place == port.varies else side for place, side in enumerate(port.shape))


def _is_short(record: Record) -> bool:
    return sum(math.prod(_shape(port)) for port in record.inputs) <= _MAX_VALUES


def _fill(port: Port, shape: tuple[int, ...]) -> Any:
    value: Any = False if port.dtype == "bool" else _value(port)
    if columns := [_value(column) for column in port.by_column()]:
        value, shape = columns * (shape[-1] // len(columns)), shape[:-1]
    for side in reversed(shape):
        value = [value] * side
    return value


def _value(port: Port) -> float | int:
    """Zero, or the allowed value closest to it."""
    value = min(max(0.0, port.min if port.min is not None else 0.0), port.max if port.max is not None else math.inf)
    return value if port.dtype.startswith("float") else int(value)
