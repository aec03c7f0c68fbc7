"""How long clients of a language model waited, in buckets of 1 %, for the gate of a rollout: until the first token of
each answer, and from one token to the next.

Each worker counts in a file of its own, which the supervisor reads; so the counts of one that ended stay. A file holds
the counts of one figure after the other, as little-endian integers of 64 bits. A value counts at the first edge that is
not below it; the edges are LOWEST_MS, LOWEST_MS * RATIO and so on."""

import math
import mmap
import os
import struct
from pathlib import Path

LOWEST_MS, RATIO, BUCKETS = 0.01, 1.01, 1_802
FIGURES = ("ttft", "itl")
FOLDER = "times"


class TokenTimes:
    """The counts of one worker."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        size = 8 * BUCKETS * len(FIGURES)
        with (folder / str(os.getpid())).open("w+b") as file:
            file.truncate(size)
            self._counts = mmap.mmap(file.fileno(), size)

    def add(self, figure: str, seconds: float) -> None:
        at = 8 * (BUCKETS * FIGURES.index(figure) + bucket(1000 * seconds))
        struct.pack_into("<q", self._counts, at, struct.unpack_from("<q", self._counts, at)[0] + 1)


def bucket(value_ms: float) -> int:
    """The index of the first edge that is not below the value, to the accuracy of a logarithm; the last, if none is."""
    if value_ms <= LOWEST_MS:
        return 0
    return min(BUCKETS - 1, math.ceil(math.log(value_ms / LOWEST_MS) / math.log(RATIO) - 1e-9))
