"""Finds the line of the user's code where a model draws a random number or mixes the rows of a batch."""

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

# Between the user's code and an operator lie frames of installed packages, of ours and of the standard library.
_INSTALLED = {"dist-packages", "site-packages"}
_OURS = Path(__file__).parents[2]
_NOT_THE_USERS = (_OURS / "archiver", _OURS / "handlers", Path(sysconfig.get_path("stdlib")))
# Functions of torch that behave differently in training mode; such a name is clearer than that of the operator.
_MODE_DEPENDENT = {"batch_norm", "dropout"}
# The operator that reads a tensor's value into Python, where it may decide a branch.
_READS_VALUE = "_local_scalar_dense"

RunBatch = Callable[[list[torch.Tensor]], tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class Culprit:
    """An operator and the line of the user's code that calls it; without a line if only installed packages do."""

    operator: str
    place: str | None = None
    code: str = ""


@dataclass
class _Call:
    """One call of an operator: whether it draws random numbers, and a few sums over each row of its outputs."""

    culprit: Culprit
    is_random: bool
    row_sums: list[torch.Tensor] = field(default_factory=list)


def find_random_operator(run: RunBatch, inputs: Sequence[torch.Tensor]) -> Culprit | None:
    """The first operator that draws random numbers."""
    return next((call.culprit for call in _recorded_calls(run, inputs) if call.is_random), None)


def find_mixing_operator(
    run: RunBatch, inputs: Sequence[torch.Tensor], others: Sequence[torch.Tensor], unchanged: slice
) -> Culprit | None:
    """The first operator that computes the `unchanged` rows, equal in both inputs, differently. If the two runs call
    different operators, it is the last one that read a value, because the code branched on it."""
    branched: Culprit | None = None
    for left, right in zip_longest(_recorded_calls(run, inputs), _recorded_calls(run, others)):
        if left is None or right is None or left.culprit != right.culprit:
            return branched
        if left.culprit.operator.partition("::")[2] == _READS_VALUE:
            branched = left.culprit
        for sums, other_sums in zip(left.row_sums, right.row_sums, strict=False):
            if not torch.allclose(sums[unchanged], other_sums[unchanged], rtol=1e-6, atol=1e-9, equal_nan=True):
                return left.culprit
    return None


def _recorded_calls(run: RunBatch, inputs: Sequence[torch.Tensor]) -> list[_Call]:
    recorder = _OperatorRecorder(len(inputs[0]))
    try:
        with recorder:
            run(list(inputs))
    except Exception:
        # The model fails on such rows; the calls up to there are recorded.
        pass
    return recorder.calls


class _OperatorRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records every operator that runs, with the user's line that called it."""

    def __init__(self, rows: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._rows = rows
        self.calls: list[_Call] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        call = _Call(_culprit(func.name().partition(".")[0]), torch.Tag.nondeterministic_seeded in func.tags)
        for value in pytree.tree_leaves(output):
            if isinstance(value, torch.Tensor) and value.ndim and len(value) == self._rows and value.numel():
                call.row_sums.append(_row_sums(value))
        self.calls.append(call)
        return output


def _row_sums(value: torch.Tensor) -> torch.Tensor:
    flat = value.detach().reshape(len(value), -1).double()
    return torch.stack([flat.sum(1), flat.abs().sum(1), flat.amax(1)], dim=1)


def _culprit(operator: str) -> Culprit:
    """The operator with the innermost frame of the user's code."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not _recorded_calls.__code__:
        if frame.f_code.co_name in _MODE_DEPENDENT:
            operator = frame.f_code.co_name
        file = Path(frame.f_code.co_filename)
        if _is_the_users(file):
            file, here = file.resolve(), Path.cwd()
            shown = file.relative_to(here) if file.is_relative_to(here) else file
            code = linecache.getline(str(file), frame.f_lineno).strip()
            return Culprit(operator, f"{shown}:{frame.f_lineno}", code)
        frame = frame.f_back
    return Culprit(operator)


@functools.cache
def _is_the_users(file: Path) -> bool:
    return file.is_file() and not _INSTALLED & set(file.parts) and not any(map(file.is_relative_to, _NOT_THE_USERS))
