"""What protocols need from a handler, and what they make from a request."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

from marina.handlers.arrays import Array
from marina.handlers.record import PackedRecord
from marina.handlers.request import Answer, Request
from marina.handlers.validation import Overdue, TooLarge

Row = list[Array]


@dataclass(frozen=True)
class Exchange:
    """The rows of one request, and a function that makes its answer from the model's outputs for them."""

    rows: list[Row]
    answer: Callable[[list[Row]], Answer]


@dataclass(frozen=True)
class NamedTensor:
    """A named tensor of a request: either an array, or the elements of a BYTES tensor."""

    name: str
    shape: tuple[int, ...]
    array: Array | None = None
    elements: tuple[bytes, ...] = ()
    encoded: bool = False
    """Whether the elements came as JSON strings; bytes such as those of a picture are in base64 then."""


class ProtocolHandler(Protocol):
    """The part of a handler that protocols use."""

    record: PackedRecord
    max_rows: int

    @property
    def tensor_names(self) -> set[str]: ...
    def exchange(self, request: Request) -> Exchange: ...
    def decode_row(self, request: Request) -> Row: ...
    def encode(self, outputs: Row, request: Request) -> Answer: ...
    def decode_tensors(self, tensors: Mapping[str, NamedTensor], until: float) -> tuple[list[Row], bool]: ...
    def name_outputs(self, outputs: Row) -> Mapping[str, Array | list[str]]: ...


def check_row_count(count: int, max_rows: int, field: str) -> None:
    """Raises TooLarge if a request has so many rows that it would delay its batch, or the worker beyond its time
    limit."""
    if count > max_rows:
        raise TooLarge("too many in one request", field=field, got=count, allowed=f"at most {max_rows}")


def check_time(until: float) -> None:
    """Call this before decoding each row; raises Overdue once the time is up."""
    if perf_counter() > until:
        raise Overdue
