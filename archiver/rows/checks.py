"""Checks that the answer to a row is the same every time and does not depend on the other rows of its batch."""

from collections.abc import Iterator, Sequence

import torch
from torch import nn

from marina.archiver.rows.culprits import Culprit, RunBatch, find_mixing_operator, find_random_operator
from marina.config.errors import SourceError

# Two runs of a network in fp32 round differently by less than this, as a share of a value and of the largest one. A
# larger share would hide what changes answers that are all nearly alike, such as years or temperatures in kelvin.
ROUNDING, LARGEST_ROUNDING = 1e-4, 1e-5
# How many rows a check tries on the eager model: enough to see whether its answers depend on anything else at all.
TRIED_ROWS = 8
# A model that draws random numbers may draw the same ones several times in a row.
_TRIED_DRAWS = 64


class RowsMixed(SourceError):
    """Raised when the answer to a row depends on the others of its batch."""


def check_repeatable(where: str, graph: nn.Module, inputs: Sequence[torch.Tensor], batch: int) -> None:
    """Raises SourceError if the same rows get different answers the second time; its message says what changes them."""
    run = eager_runner(where, graph)
    rows = next(_chunks(inputs, batch))
    with torch.random.fork_rng():
        before = torch.get_rng_state()
        answered = run(list(rows))
        # A model that keeps what it was asked last would answer the same rows alike.
        run([value.roll(1, 0)[:batch] for value in inputs])
        for _ in range(1 if torch.equal(before, torch.get_rng_state()) else _TRIED_DRAWS):
            if not _equal(answered, run(list(rows)), slice(None)):
                raise _unrepeatable(where, graph, run, rows)


def _unrepeatable(where: str, graph: nn.Module, run: RunBatch, rows: list[torch.Tensor]) -> SourceError:
    if culprit := find_random_operator(run, rows):
        return _random(where, culprit)
    before = {name: value.clone() for name, value in graph.state_dict().items()}
    run(list(rows))
    changed = [name for name, value in graph.state_dict().items() if not torch.equal(value, before[name])]
    state = f"`{changed[0].removeprefix('network.')}` changes with every request" if changed else "it keeps some state"
    return SourceError(
        f"{where}: the model answers the same input differently the second time: {state}",
        hint="use a `forward` that changes nothing in the model and reads no clock or other outside value",
    )


def check_rows_apart(where: str, graph: nn.Module, inputs: Sequence[torch.Tensor], batch: int) -> None:
    """Raises RowsMixed if the answer to a row depends on the others of its batch; its message names the line that mixes
    them."""
    run = eager_runner(where, graph)
    for rows in _chunks(inputs, batch):
        answered = run(list(rows))
        for unchanged, others in _with_other_neighbours(rows):
            if not _equal(answered, run(list(others)), unchanged):
                raise _mixed(where, find_mixing_operator(run, rows, others, unchanged) or Culprit(""))


def _mixed(where: str, culprit: Culprit) -> RowsMixed:
    text = "the answer to an input depends on the other inputs of its batch"
    hint = "use `batch_sizes: [1]`, or a model that computes each row independently"
    if "batch_norm" in culprit.operator:
        hint = "use evaluation mode, which normalises by the averages of the training; or `batch_sizes: [1]`"
    return RowsMixed(_located(where, culprit, text), hint=hint)


def _random(where: str, culprit: Culprit) -> SourceError:
    text = "draws a random number, so the same input is answered differently every time"
    hint = "pass the random values as an input of `forward`, or set `min_agreement: 0` to serve the model as it is"
    if "dropout" in culprit.operator:
        hint = "use evaluation mode: `F.dropout(x, p, self.training)`, and no layer that stays in training mode"
    elif culprit.place is None and "bernoulli" in culprit.operator:
        hint = "export it in evaluation mode: `torch.export.export(model.eval(), …)`"
    return SourceError(_located(where, culprit, text), hint=hint)


def _located(where: str, culprit: Culprit, text: str) -> str:
    """The message with the user's line in front, or at least with the operator."""
    if culprit.place is not None:
        return f"{culprit.place}: `{culprit.code}`: {text}"
    return f"{where}: {text}" + (f", by its operator `{culprit.operator}`" if culprit.operator else "")


def eager_runner(where: str, graph: nn.Module) -> RunBatch:
    """A function that runs a batch through the graph, without gradients; a model may change its copy of the rows. Its
    errors become a SourceError."""

    def run(rows: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        try:
            with torch.no_grad():
                return tuple(graph(*(value.clone() for value in rows)))
        except Exception as err:
            raise SourceError(
                f"{where}: the model fails on some inputs: {type(err).__name__}: {err}",
                hint="limit them to what it takes, with `min` and `max` of `model.inputs`, or with `max_tokens` of "
                "`model.encoding`",
            ) from err

    return run


def _chunks(inputs: Sequence[torch.Tensor], batch: int) -> Iterator[list[torch.Tensor]]:
    """Whole batches of the first rows."""
    for begin in range(0, min(len(inputs[0]), max(TRIED_ROWS, batch)) - batch + 1, batch):
        yield [value[begin : begin + batch] for value in inputs]


def _with_other_neighbours(rows: list[torch.Tensor]) -> Iterator[tuple[slice, list[torch.Tensor]]]:
    """The rows with every other one replaced by a copy of its neighbour, and which rows are unchanged."""
    batch = len(rows[0])
    for first in range(2 if batch > 1 else 0):
        at = torch.tensor([min(row - row % 2 + first, batch - 1) for row in range(batch)])
        yield slice(first, None, 2), [value[at] for value in rows]


def _equal(outputs: Sequence[torch.Tensor], others: Sequence[torch.Tensor], rows: slice) -> bool:
    """Whether these rows of two runs' outputs are equal up to rounding."""
    return all(
        left.shape == right.shape and close(left[rows].double(), right[rows].double())
        for left, right in zip(outputs, others, strict=True)
    )


def close(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether all values are equal up to rounding."""
    largest = left.abs().nan_to_num(posinf=0).max().item() if left.numel() else 0.0
    return torch.allclose(left, right, rtol=ROUNDING, atol=LARGEST_ROUNDING * largest, equal_nan=True)
