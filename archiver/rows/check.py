"""Every row is answered by itself, and the same every time: whoever else asks at the same moment changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import nn

from archiver.rows.places import Culprit, Run, chance_of, mixing_of
from config.errors import SourceError

# In one shape and at one place a row is computed by the same kernels: nothing but other rows, chance and what the
# model keeps make more of a difference.
_ROUNDING = 1e-3
_TRIED_ROWS = 8
# What draws numbers may draw the same ones twice.
_TRIED_DRAWS = 64


class RowsMixed(SourceError):
    """Raised when the answer to a row depends on the others of its batch."""


def check_alike(where: str, graph: nn.Module, inputs: Sequence[torch.Tensor], batch: int) -> None:
    """The same rows get the same answers the second time; SourceError says what changes them."""
    run = _runs(graph)
    rows = next(_chunks(inputs, batch))
    with torch.random.fork_rng():
        before = torch.get_rng_state()
        answered = run(list(rows))
        for _ in range(1 if torch.equal(before, torch.get_rng_state()) else _TRIED_DRAWS):
            if not _equal(answered, run(list(rows)), slice(None)):
                raise _changing(where, graph, run, rows)


def _changing(where: str, graph: nn.Module, run: Run, rows: list[torch.Tensor]) -> SourceError:
    if culprit := chance_of(run, rows):
        return _drawn(where, culprit)
    before = {name: value.clone() for name, value in graph.state_dict().items()}
    run(list(rows))
    changed = [name for name, value in graph.state_dict().items() if not torch.equal(value, before[name])]
    kept = f"`{changed[0].removeprefix('network.')}` changes with every request" if changed else "it keeps something"
    return SourceError(
        f"{where}: the model answers the same input differently the second time: {kept}",
        hint="a `forward` that changes nothing of the model, and takes no time or number from elsewhere",
    )


def check_apart(where: str, graph: nn.Module, inputs: Sequence[torch.Tensor], batch: int) -> None:
    """The answer to a row does not depend on the others of its batch; RowsMixed names the line that mixes them."""
    run = _runs(graph)
    for rows in _chunks(inputs, batch):
        answered = run(list(rows))
        for kept, others in _with_other_neighbours(rows):
            if not _equal(answered, run(list(others)), kept):
                raise _mixed(where, mixing_of(run, rows, others, kept) or Culprit(""))


def _mixed(where: str, culprit: Culprit) -> RowsMixed:
    text = "the answer to an input depends on those that come in the same batch"
    hint = "batch_sizes: [1], or a model that computes each row by itself"
    if "batch_norm" in culprit.operator:
        hint = "evaluation mode, with the averages of the training and not those of the batch; or `batch_sizes: [1]`"
    return RowsMixed(_at(where, culprit, text), hint=hint)


def _drawn(where: str, culprit: Culprit) -> SourceError:
    text = "draws a random number, so the same input is answered differently every time"
    hint = "what is random as an input of `forward`, or `min_agreement: 0`, which serves it as it is"
    if "dropout" in culprit.operator:
        hint = "evaluation mode: `F.dropout(x, p, self.training)`, and no layer that stays in training"
    return SourceError(_at(where, culprit, text), hint=hint)


def _at(where: str, culprit: Culprit, text: str) -> str:
    if culprit.place is not None:
        return f"{culprit.place}: `{culprit.code}`: {text}"
    return f"{where}: {text}" + (f", by its operator `{culprit.operator}`" if culprit.operator else "")


def _runs(graph: nn.Module) -> Run:
    def run(rows: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        with torch.no_grad():
            return tuple(graph(*rows))

    return run


def _chunks(inputs: Sequence[torch.Tensor], batch: int) -> Iterator[list[torch.Tensor]]:
    """Whole batches of the first rows."""
    for begin in range(0, min(len(inputs[0]), max(_TRIED_ROWS, batch)) - batch + 1, batch):
        yield [value[begin : begin + batch] for value in inputs]


def _with_other_neighbours(rows: list[torch.Tensor]) -> Iterator[tuple[slice, list[torch.Tensor]]]:
    """Every second row stays at its place, and the ones between become as it is."""
    batch = len(rows[0])
    for first in range(2 if batch > 1 else 0):
        at = torch.tensor([min(row - row % 2 + first, batch - 1) for row in range(batch)])
        yield slice(first, None, 2), [value[at] for value in rows]


def _equal(left: Sequence[torch.Tensor], right: Sequence[torch.Tensor], kept: slice) -> bool:
    return all(
        mine.shape == theirs.shape and _close(mine[kept].double(), theirs[kept].double())
        for mine, theirs in zip(left, right, strict=True)
    )


def _close(mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    largest = float(mine.abs().nan_to_num(posinf=0).max()) if mine.numel() else 0.0
    return torch.allclose(mine, theirs, rtol=_ROUNDING, atol=_ROUNDING * _ROUNDING * largest, equal_nan=True)
