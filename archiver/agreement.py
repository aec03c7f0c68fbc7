"""Whether an artifact answers as the eager fp32 model does, on the inputs it was calibrated on or on seeded ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from archiver.inputs import Rows, batches
from config.record import Agreement

RunBatch = Callable[[list[torch.Tensor]], tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class Compared:
    """How far two sets of answers are apart."""

    agreement: float
    max_abs_difference: float
    cosine: float


def answers(run: RunBatch, inputs: Rows, batch: int) -> Rows:
    """The outputs for every row, computed in batches of one size."""
    parts = [[value[:real] for value in run(list(rows))] for rows, real in batches(inputs, batch)]
    return tuple(torch.cat(column).cpu() for column in zip(*parts, strict=True))


def eager(graph: nn.Module) -> RunBatch:
    """A graph as something to run batches with."""

    def run(inputs: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        with torch.no_grad():
            return tuple(graph(*inputs))

    return run


def compare_classes(expected: Rows, got: Rows) -> Compared:
    """Answers of (top_probs, top_indices): rows agree when their first class is the same."""
    same = (expected[1][:, 0] == got[1][:, 0]).double().mean()
    classes = int(max(expected[1].max(), got[1].max())) + 1
    left, right = (_by_class(answer, classes) for answer in (expected, got))
    return Compared(float(same), float((left - right).abs().max()), _cosine(left, right))


def compare_tensors(expected: Rows, got: Rows, tolerance: float) -> Compared:
    """Answers of any tensors: rows agree when no value is off by more than `tolerance` of the row's largest."""
    rows = len(expected[0])
    agree = torch.ones(rows, dtype=torch.bool)
    largest, cosine = 0.0, 1.0
    for left, right in zip(expected, got, strict=True):
        left, right = left.reshape(rows, -1).double(), right.reshape(rows, -1).double()
        difference = (left - right).abs().amax(dim=1)
        # Not `<=` negated: a NaN must disagree.
        agree &= difference <= tolerance * left.abs().amax(dim=1)
        largest = max(largest, float(difference.max()))
        cosine = min(cosine, _cosine(left, right))
    return Compared(float(agree.double().mean()), largest, cosine)


def worst(measured: list[Compared], *, inputs: str, count: int, measure: str) -> Agreement:
    """The record of several artifacts: the worst of each number."""
    return Agreement.model_validate(
        {
            "inputs": inputs,
            "count": count,
            "measure": measure,
            "agreement": min(compared.agreement for compared in measured),
            "max_abs_difference": round(max(compared.max_abs_difference for compared in measured), 6),
            "cosine": round(min(compared.cosine for compared in measured), 6),
        }
    )


def _by_class(answer: Rows, classes: int) -> torch.Tensor:
    """Top probabilities put at the place of their class, zero elsewhere."""
    probabilities, indices = answer[0].double(), answer[1]
    return torch.zeros(len(indices), classes, dtype=torch.double).scatter(1, indices, probabilities)


def _cosine(left: torch.Tensor, right: torch.Tensor) -> float:
    """The smallest cosine over the rows; two zero rows are equal."""
    both_zero = (left.abs().amax(dim=1) == 0) & (right.abs().amax(dim=1) == 0)
    cosines = torch.nn.functional.cosine_similarity(left, right, dim=1)
    return float(torch.where(both_zero, torch.ones_like(cosines), cosines).min())
