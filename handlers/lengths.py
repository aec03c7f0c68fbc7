"""Inputs with a dimension that varies: what a request's length is, and into which shapes a batch of them is cut.

Rows are sorted by length, and the cut is the cheapest by what each shape took at warm-up: of a row of 20 and three of
120 values, with shapes for 32 and 128, either the four run together as 128, or the short one by itself as 32. Only
rows that can be answered are looked at, so a bad request changes nothing for its neighbours."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from handlers.arrays import Array
from handlers.record import TensorSpec
from handlers.validation import Unprocessable

# A batch size and a length; the length is 0 where nothing varies.
Shape = tuple[int, int]
# That a request may have.
SHORTEST = 1


@dataclass(frozen=True)
class Chunk:
    """Rows, by their places, that run together, padded to a shape."""

    places: Sequence[int]
    size: int
    length: int = 0


def length_of(row: Sequence[Array], inputs: Sequence[TensorSpec]) -> int:
    """The size of the dimension that varies; 0 where none does."""
    for array, spec in zip(row, inputs, strict=True):
        if spec.varies is not None:
            return int(array.shape[spec.varies])
    return 0


def check_length(row: Sequence[Array], inputs: Sequence[TensorSpec]) -> None:
    """All inputs of a request that vary are of one length."""
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
    """The chunks that cover rows of these lengths, by their places, in the least summed time; fewer where times are
    equal. `seconds` has every batch size with every bucket."""
    places = sorted(lengths, key=lambda place: (-lengths[place], place))
    buckets = sorted({length for _, length in seconds})
    sizes = sorted({size for size, _ in seconds})
    fitting = [lengths[place] for place in places]
    if not dynamic:
        fitting = [next(bucket for bucket in buckets if length <= bucket) for length in fitting]
    # Of each size, what a chunk takes whose longest row is at a place.
    costs = {
        size: np.interp(fitting, buckets, [seconds[size, bucket] for bucket in buckets]).tolist() for size in sizes
    }
    # From the end: the least time for the rows from here on, the number of chunks, and the size of the first.
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
