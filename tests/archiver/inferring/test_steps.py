"""The steps of a sequence may lie along either dimension, and need no dimension for a single number."""

from typing import Any

import pytest
from networks import Net
from torch import nn

from archiver.inferring import find_inputs

LAST = "`x`: 128 is a guess, the model takes longer ones as well"


def convolves(self: Any, x: Any) -> Any:
    return self.c(x.transpose(1, 2)).mean(2)


def recurs(self: Any, x: Any) -> Any:
    return self.r(x.transpose(1, 2))[0][:, -1]


STEPS: list[Any] = [
    pytest.param(Net(convolves, c=nn.Conv1d(7, 4, 3, padding=1)), [128, 7], id="steps first"),
    pytest.param(Net(recurs, r=nn.GRU(5, 4, batch_first=True)), [5, 128], id="steps last"),
    pytest.param(
        Net(lambda self, x: self.r(x[..., None])[0][:, -1], r=nn.GRU(1, 4, batch_first=True)),
        [128],
        id="single numbers",
    ),
]


@pytest.mark.parametrize(("network", "shape"), STEPS)
def test_steps_along_either_dimension_are_found_and_their_number_is_a_guess(
    network: nn.Module, shape: list[int]
) -> None:
    inferred = find_inputs(network, [])
    assert inferred.inputs["x"].field() == {"shape": shape, "dtype": "float32"}
    assert inferred.notes[-1] == LAST


def test_as_many_steps_as_numbers_in_each_are_tried_last() -> None:
    inferred = find_inputs(Net(convolves, c=nn.Conv1d(128, 4, 3, padding=1)), [])
    assert inferred.inputs["x"].shape == (64, 128)
