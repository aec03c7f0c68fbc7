"""What a protocol asks of a handler, and what it makes of one request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

from handlers.arrays import Array
from handlers.record import PackedRecord
from handlers.request import Answer, Request
from handlers.validation import Overdue, TooLarge

Row = list[Array]


@dataclass(frozen=True)
class Exchange:
    """The rows of one request, and how its answer is made of what the model gave for them."""

    rows: list[Row]
    answer: Callable[[list[Row]], Answer]


@dataclass(frozen=True)
class NamedTensor:
    """A named tensor of a request: an array, or the elements of one of bytes; `encoded` where those came in JSON, which
    holds no bytes."""

    name: str
    shape: tuple[int, ...]
    array: Array | None = None
    elements: tuple[bytes, ...] = ()
    encoded: bool = False


class ProtocolHandler(Protocol):
    """What is used of a handler."""

    record: PackedRecord
    most_rows: int

    @property
    def tensor_names(self) -> set[str]: ...
    def exchange(self, request: Request) -> Exchange: ...
    def decode(self, request: Request) -> Row: ...
    def encode(self, outputs: Row, request: Request) -> Answer: ...
    def decode_tensors(self, tensors: Mapping[str, NamedTensor], until: float) -> tuple[list[Row], bool]: ...
    def name_outputs(self, outputs: Row) -> Mapping[str, Array | list[str]]: ...


def check_row_count(count: int, most: int, field: str) -> None:
    """One request must not hold up the others of its batch, nor a worker past its time."""
    if count > most:
        raise TooLarge("too many in one request", field=field, got=count, allowed=f"at most {most}")


def check_time(until: float) -> None:
    """Between rows, which are decoded one after another."""
    if perf_counter() > until:
        raise Overdue
