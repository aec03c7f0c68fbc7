"""One input as it was guessed or found, and the result of a search."""

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Input:
    """The shape and type of one input, without the batch dimension."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    sequence: int | None = None
    """The dimension along which words or time steps lie; None if there is none."""
    least: int | None = None
    most: int | None = None
    """The limits of an integer input, if known."""
    varies: bool = False
    """Whether the sequence may be shorter than in `shape`."""
    mask_of: str | None = None

    def values(self, rows: int, generator: torch.Generator, *, least: int = 0, most: int | None = 1) -> torch.Tensor:
        """Random rows; integers are from `least` to `most`, by default 0 and 1, which every embedding table has."""
        shape, dtype = (rows, *self.shape), getattr(torch, self.dtype)
        if dtype.is_floating_point:
            return torch.rand(shape, generator=generator, dtype=dtype)
        if dtype == torch.bool:
            return torch.ones(shape, dtype=torch.bool)
        most = min(self.most if self.most is not None else 1, most if most is not None else 2**31)
        least = min(max(least, self.least or 0), most)
        return torch.randint(least, most + 1, shape, generator=generator, dtype=dtype)

    def field(self) -> dict[str, Any]:
        """The input's entry under `model.inputs` of a spec."""
        if self.mask_of is not None:
            return {"mask_of": self.mask_of, "dtype": self.dtype}
        shape: list[Any] = list(self.shape)
        if self.varies and self.sequence is not None:
            shape[self.sequence] = {"max": shape[self.sequence]}
        limits = {"min": self.least, "max": self.most}
        return {"shape": shape, "dtype": self.dtype} | {
            key: limit for key, limit in limits.items() if limit is not None
        }

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


@dataclass(frozen=True)
class InferredInputs:
    """The inputs that were found, and the outputs of a run on them."""

    inputs: dict[str, Input]
    outputs: tuple[tuple[int, ...], ...]
    """Their shapes, without the batch dimension."""
    only_batch: int | None = None
    names: tuple[str, ...] | None = None
    """The names of the outputs, if the model returns them by name."""
    notes: tuple[str, ...] = ()
    """What the user should know about the choices made."""
    free: frozenset[str] = frozenset()
    """The inputs whose size is a guess, because others work as well."""
