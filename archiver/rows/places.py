"""The line of the user's own code where a model draws a number, or lets the rows of a batch into each other."""

from __future__ import annotations

import functools
import linecache
import sys
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

# What stands between an operator and the user's code.
_INSTALLED = {"dist-packages", "site-packages"}
_ROOT = Path(__file__).parents[2]
_NOT_THEIRS = (_ROOT / "archiver", _ROOT / "handlers", Path(sysconfig.get_path("stdlib")))
# What torch computes otherwise in training, by the names of its functions.
_MODES = {"batch_norm", "dropout"}
# Where a value decides which way code goes.
_DECIDES = "_local_scalar_dense"

Run = Callable[[list[torch.Tensor]], tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class Culprit:
    """An operator, and the line of the user's code that it is of; no line where it is of an installed package."""

    operator: str
    place: str | None = None
    code: str = ""


@dataclass
class _Call:
    """One operator's call, and of each row of what it gave a few sums."""

    culprit: Culprit
    drawn: bool
    rows: list[torch.Tensor] = field(default_factory=list)


def chance_of(run: Run, inputs: Sequence[torch.Tensor]) -> Culprit | None:
    """The first operator that draws random numbers."""
    return next((call.culprit for call in _followed(run, inputs) if call.drawn), None)


def mixing_of(run: Run, inputs: Sequence[torch.Tensor], others: Sequence[torch.Tensor], kept: slice) -> Culprit | None:
    """The first operator that answers the `kept` rows, equal in both inputs, differently; or where the code went
    another way for them."""
    decided: Culprit | None = None
    for left, right in zip_longest(_followed(run, inputs), _followed(run, others)):
        if left is None or right is None or left.culprit != right.culprit:
            return decided
        if left.culprit.operator.partition("::")[2] == _DECIDES:
            decided = left.culprit
        for mine, theirs in zip(left.rows, right.rows, strict=False):
            if not torch.allclose(mine[kept], theirs[kept], rtol=1e-6, atol=1e-9, equal_nan=True):
                return left.culprit
    return None


def _followed(run: Run, inputs: Sequence[torch.Tensor]) -> list[_Call]:
    follow = _Follow(len(inputs[0]))
    try:
        with follow:
            run(list(inputs))
    except Exception:
        # A model that fails on such rows: what it did until then is followed.
        pass
    return follow.calls


class _Follow(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every operator that runs, with the user's line."""

    def __init__(self, rows: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._rows = rows
        self.calls: list[_Call] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        call = _Call(_culprit(func.name().partition(".")[0]), torch.Tag.nondeterministic_seeded in func.tags)
        for value in pytree.tree_leaves(made):
            if isinstance(value, torch.Tensor) and value.ndim and len(value) == self._rows and value.numel():
                call.rows.append(_sums(value))
        self.calls.append(call)
        return made


def _sums(value: torch.Tensor) -> torch.Tensor:
    flat = value.detach().reshape(len(value), -1).double()
    return torch.stack([flat.sum(1), flat.abs().sum(1), flat.amax(1)], dim=1)


def _culprit(operator: str) -> Culprit:
    """With the innermost frame that is neither torch's nor ours."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not _followed.__code__:
        if frame.f_code.co_name in _MODES:
            operator = frame.f_code.co_name
        file = Path(frame.f_code.co_filename)
        if _is_theirs(file):
            file, here = file.resolve(), Path.cwd()
            shown = file.relative_to(here) if file.is_relative_to(here) else file
            code = linecache.getline(str(file), frame.f_lineno).strip()
            return Culprit(operator, f"{shown}:{frame.f_lineno}", code)
        frame = frame.f_back
    return Culprit(operator)


@functools.cache
def _is_theirs(file: Path) -> bool:
    return file.is_file() and not _INSTALLED & set(file.parts) and not any(map(file.is_relative_to, _NOT_THEIRS))
