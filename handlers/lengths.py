"""Inputs with a dimension that varies: finds the length of a request, and cuts a batch of requests into shapes.

Rows are sorted by length, and the cut is the cheapest one by the times that each shape took at warm-up. Given one row
of 20 values and three of 120, and shapes for 32 and 128, either all four run together as 128, or the short one runs
alone as 32. Rows that cannot be answered are left out before the cut, so a bad request changes nothing for the
others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from marina.handlers.arrays import Array
from marina.handlers.record import TensorSpec
from marina.handlers.validation import Unprocessable

# A batch size and a length; the length is 0 if nothing varies.
Shape = tuple[int, int]
# The smallest length that a request may have.
SHORTEST = 1


@dataclass(frozen=True)
class Chunk:
    """Rows that run together, padded to one shape; `places` are their positions in the batch."""

    places: Sequence[int]
    size: int
    length: int = 0


def length_of(row: Sequence[Array], inputs: Sequence[TensorSpec]) -> int:
    """The size of a row's dimension that varies; 0 if none does."""
    for array, spec in zip(row, inputs, strict=True):
        if spec.varies is not None:
            return int(array.shape[spec.varies])
    return 0


def check_length(row: Sequence[Array], inputs: Sequence[TensorSpec]) -> None:
    """Raises Unprocessable unless all varying inputs of a request have the same length."""
    sizes = {
        spec.name: array.shape[spec.varies]
        for array, spec in zip(row, inputs, strict=True)
        if spec.varies is not None and array.ndim > spec.varies
    }
    if len(set(sizes.values())) > 1:
        first, *others = sizes
        name = next(name for name in others if sizes[name] != sizes[first])
        raise Unprocessable(
            "the inputs differ in length", field=name, got=sizes[name], allowed=f"{sizes[first]}, as `{first}` has"
        )


def cheapest_chunks(
    lengths: Mapping[int, int], seconds: Mapping[Shape, float], *, dynamic: bool = False
) -> list[Chunk]:
    """The chunks that run rows of these lengths (by place) in the least total time, and in fewer chunks if times are
    equal. `seconds` has the time of every batch size with every length that was timed."""
    places = sorted(lengths, key=lambda place: (-lengths[place], place))
    buckets = sorted({length for _, length in seconds})
    sizes = sorted({size for size, _ in seconds})
    fitting = [lengths[place] for place in places]
    if not dynamic:
        fitting = [next(bucket for bucket in buckets if length <= bucket) for length in fitting]
    # For each batch size, the time of a chunk whose first and longest row is at each position of the sorted rows.
    costs = {
        size: np.interp(fitting, buckets, [seconds[size, bucket] for bucket in buckets]).tolist() for size in sizes
    }
    # Filled from the end: the least time for the rows from here on, the number of chunks, and the size of the first
    # one.
    best: list[tuple[float, int, int]] = [(0.0, 0, 0)] * (len(places) + 1)
    for start in reversed(range(len(places))):
        after = ((best[min(start + size, len(places))], size) for size in sizes)
        best[start] = min((rest[0] + costs[size][start], rest[1] + 1, size) for rest, size in after)
    chunks, start = [], 0
    while start < len(places):
        size = best[start][2]
        chunks.append(Chunk(places[start : start + size], size, fitting[start]))
        start += size
    return chunks
