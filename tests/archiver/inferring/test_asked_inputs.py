"""Inputs that cannot be found, or that no request can hold, are asked for or refused in a sentence."""

from typing import Any

import pytest
import torch
from networks import Net
from torch import nn

from marina.archiver.inferring import find_inputs, find_program_inputs, parse_input_option
from marina.config.errors import InputError, SourceError

ASKED: list[Any] = [
    pytest.param(
        Net(lambda self, x: self.f(x).mean(), f=nn.Linear(3, 2)),
        "`--source`: an output is () for 2 rows, allowed: tensors with one row per input row",
        id="one number for all",
    ),
    pytest.param(
        Net(lambda self, a, b: self.f(torch.cat([a, b], 1)), f=nn.Linear(9, 2)),
        "`--input`: missing for `a`, `b`: together they enter a layer of width 9, which does not show how wide each is",
        id="two in one",
    ),
    pytest.param(nn.Identity(), "`--input`: missing for `input`: no layer shows what `forward` takes", id="no layer"),
    pytest.param(
        Net(lambda self, x: self.r(x)[0], r=nn.LSTM(7, 4)),
        "`--source`: its layer `r` takes the batch as its second dimension, but requests are rows",
        id="batch second",
    ),
    pytest.param(
        Net(
            lambda self, x: self.t(self.p(x))[-1],
            p=nn.Linear(3, 8),
            t=nn.TransformerEncoderLayer(8, 2, 16),
        ),
        "`--source`: its layer `t.self_attn` takes the batch as its second dimension, but requests are rows",
        id="batch second, and only the last step is returned",
    ),
    pytest.param(
        Net(lambda self, x, edge_index: self.f(x)[edge_index[0]], f=nn.Linear(7, 4)),
        "`--source`: `forward` takes the edges of one graph, but requests are rows",
        id="one graph",
    ),
    pytest.param(
        Net(lambda self, text, offsets: self.e(text, offsets), e=nn.EmbeddingBag(9, 4)),
        "`--source`: `forward` takes the concatenated words of all texts, but requests are rows",
        id="bags in one row",
    ),
    pytest.param(
        Net(lambda self, **batch: self.f(batch["x"]), f=nn.Linear(3, 2)),
        "`--source`: `forward` takes only `**batch`, allowed: tensors, each with a name",
        id="any names",
    ),
]


@pytest.mark.parametrize(("network", "message"), ASKED)
def test_inputs_that_cannot_be_found_are_asked_for(network: nn.Module, message: str) -> None:
    with pytest.raises((InputError, SourceError)) as caught:
        find_inputs(network, [])
    assert caught.value.message == message


def test_the_error_names_the_likeliest_inputs_that_failed() -> None:
    network = Net(lambda self, x: self.f(torch.cat([x.nan_to_num(), x.isnan().float()], -1)), f=nn.Linear(12, 4))
    with pytest.raises(InputError, match=r"with `x` float32 \[12\] it fails: .* \(2x24 and 12x4\)"):
        find_inputs(network, [])


def test_answers_that_are_not_finite_get_a_hint_about_the_weights() -> None:
    with pytest.raises(SourceError, match="an output is not a finite number\n\nhint: compare the weights"):
        find_inputs(Net(lambda self, x: self.f(x) * float("nan"), f=nn.Linear(3, 2)), [])


class Cells(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.Embedding(10, 4)

    def forward(self, row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
        return self.cells(row.clamp(min=0) * 4 + column).sum(1)


def test_inputs_that_the_user_or_a_program_names_are_limited_to_numbers_that_work() -> None:
    rows = torch.ones(4, 2, dtype=torch.int64)
    program = torch.export.export(Cells(), (rows, rows.clone()))
    given = [parse_input_option(f"{name}:int64:2") for name in ("row", "column")]
    for inferred in (find_inputs(Cells(), given), find_program_inputs(program, program.module(), [], 4)):
        assert [(each.least, each.most) for each in inferred.inputs.values()] == [(0, 2), (0, 1)]


def test_arguments_that_may_get_a_tensor_but_need_none_are_named() -> None:
    network = Net(lambda self, x, y=None, by=1: self.f(x if y is None else x + by * y), f=nn.Linear(3, 2))
    said = "requests cannot send `y`, which `forward` does not need; to change: `--input NAME:DTYPE:SHAPE`"
    assert said in find_inputs(network, []).notes
    assert find_inputs(network, [parse_input_option("y:float32:3")]).notes == ()


def test_whole_numbers_may_be_large_although_negative_ones_fail() -> None:
    network = Net(lambda self, seconds: self.f(seconds.double().sqrt().float()), f=nn.Linear(2, 2))
    inferred = find_inputs(network, [parse_input_option("seconds:int64:2")])
    assert (inferred.inputs["seconds"].least, inferred.inputs["seconds"].most) == (0, None)
    assert inferred.notes == ("`seconds`: values below 0 fail",)
