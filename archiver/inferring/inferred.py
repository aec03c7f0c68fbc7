"""What is known of one input, and of all of them together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Input:
    """A shape and type that may be tried, without the batch."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    sequence: int | None = None
    """Which of its dimensions is one of words or steps."""
    least: int | None = None
    most: int | None = None
    """Of whole numbers, where they are known."""
    varies: bool = False
    """Whether its sequence may be of any length up to that of the shape."""
    mask_of: str | None = None

    def values(self, rows: int, generator: torch.Generator, *, least: int = 0, most: int | None = 1) -> torch.Tensor:
        """Seeded ones; whole numbers from `least` to `most`, which any table has."""
        shape, dtype = (rows, *self.shape), getattr(torch, self.dtype)
        if dtype.is_floating_point:
            return torch.rand(shape, generator=generator, dtype=dtype)
        if dtype == torch.bool:
            return torch.ones(shape, dtype=torch.bool)
        most = min(self.most if self.most is not None else 1, most if most is not None else 2**31)
        least = min(max(least, self.least or 0), most)
        return torch.randint(least, most + 1, shape, generator=generator, dtype=dtype)

    def field(self) -> dict[str, Any]:
        """As `model.inputs` says it."""
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
    """What a model takes and gives."""

    inputs: dict[str, Input]
    outputs: tuple[tuple[int, ...], ...]
    """Shapes, without the batch."""
    only_batch: int | None = None
    names: tuple[str, ...] | None = None
    """Of the outputs, where the model gives them by name."""
    notes: tuple[str, ...] = ()
    """What a user should know of what was chosen."""
