"""The inputs of a network are found by trying; if they cannot be found, the error names the option to give them."""

import re
from typing import Any

import pytest
import torch
from networks import Net
from torch import nn

from marina.archiver.inferring import find_inputs, parse_input_option
from marina.config.errors import InputError, SourceError


def position(size: int) -> nn.Module:
    return nn.Embedding(size, 8)


def columns(self: Any, cats: Any, numbers: Any) -> Any:
    tables = [self.a(cats[:, 0]), self.b(cats[:, 1]), self.c(numbers)]
    return self.head(torch.cat(tables, dim=1))


def attends(self: Any, input_ids: Any, attention_mask: Any = None) -> Any:
    states = self.words(input_ids) + self.places(torch.arange(input_ids.shape[1]))
    return self.layer(states, src_key_padding_mask=attention_mask == 0)[:, 0]


def all_optional(self: Any, input_ids: Any = None, attention_mask: Any = None, scale: Any = None) -> Any:
    return attends(self, input_ids, attention_mask) * (1 if scale is None else scale)


def halves(self: Any, x: Any) -> Any:
    return self.a(x[:, :3]) + self.b(x[:, 3:])


def steps(self: Any, x: Any, h: Any, c: Any) -> Any:
    y, (h, c) = self.r(x, (h.transpose(0, 1).contiguous(), c.transpose(0, 1).contiguous()))
    return {"y": y[:, -1], "h": h.transpose(0, 1), "c": c.transpose(0, 1), "loss": None}


def spectrum(self: Any, audio: Any) -> Any:
    window = torch.hann_window(256)
    return self.f(torch.stft(audio, 256, 128, window=window, return_complex=True).abs().mean(2))


def recommends(self: Any, history: Any, user: Any, numbers: Any) -> Any:
    return self.f(torch.cat([self.items(history), self.users(user), numbers], dim=1))


def ids(length: object, most: int) -> dict[str, Any]:
    return {"shape": [] if length is None else [length], "dtype": "int64", "min": 0, "max": most}


def floats(*shape: int) -> dict[str, Any]:
    return {"shape": list(shape), "dtype": "float32"}


LAYER = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
FOUND: list[Any] = [
    pytest.param(nn.Sequential(nn.Linear(7, 3)), {"input": floats(7)}, id="features"),
    pytest.param(nn.Sequential(nn.Flatten(), nn.Linear(784, 10)), {"input": floats(1, 28, 28)}, id="a picture, flat"),
    pytest.param(
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4 * 18 * 18, 2)),
        {"input": floats(1, 20, 20)},
        id="side",
    ),
    pytest.param(
        Net(lambda self, x: self.c(x.float() / 255).mean((2, 3)), c=nn.Conv2d(3, 4, 3)),
        {"x": floats(3, 224, 224)},
        id="behind a scaling",
    ),
    pytest.param(
        Net(columns, a=nn.Embedding(5, 4), b=nn.Embedding(3, 4), c=nn.BatchNorm1d(6), head=nn.Linear(14, 2)),
        {"cats": {"shape": [2], "dtype": "int64"}, "numbers": floats(6)},
        id="columns of a table",
    ),
    pytest.param(
        Net(lambda self, user, item: (self.u(user) * self.i(item)).sum(-1), u=nn.Embedding(9, 4), i=nn.Embedding(5, 4)),
        {
            "user": {"shape": [], "dtype": "int64", "min": 0, "max": 8},
            "item": {"shape": [], "dtype": "int64", "min": 0, "max": 4},
        },
        id="numbers of things",
    ),
    pytest.param(
        Net(lambda self, row, column: self.cells(row * 4 + column), cells=nn.Embedding(10, 4)),
        {"row": ids(None, 2), "column": ids(None, 1)},
        id="a row that is computed",
    ),
    pytest.param(
        Net(attends, words=nn.Embedding(50, 8), places=position(64), layer=LAYER),
        {"input_ids": ids({"max": 64}, 49), "attention_mask": {"mask_of": "input_ids", "dtype": "bool"}},
        id="a transformer of 64 places",
    ),
    pytest.param(
        Net(all_optional, words=nn.Embedding(50, 8), places=position(64), layer=LAYER),
        {"input_ids": ids({"max": 64}, 49), "attention_mask": {"mask_of": "input_ids", "dtype": "bool"}},
        id="arguments that are all optional",
    ),
    pytest.param(
        Net(lambda self, x: self.f(self.r(x)[0][:, -1]), r=nn.GRU(6, 8, batch_first=True), f=nn.Linear(8, 1)),
        {"x": floats(128, 6)},
        id="steps",
    ),
    pytest.param(Net(spectrum, f=nn.Linear(129, 3)), {"audio": floats(16000)}, id="a second of sound"),
    pytest.param(
        Net(recommends, items=nn.EmbeddingBag(50, 4), users=nn.Embedding(9, 4), f=nn.Linear(11, 1)),
        {"history": ids(128, 49), "user": ids(None, 8), "numbers": floats(3)},
        id="a bag and a number of things",
    ),
    pytest.param(
        Net(lambda self, words, scale: self.f(self.e(words).mean(1)) * scale, e=nn.Embedding(50, 8), f=nn.Linear(8, 3)),
        {"words": ids(128, 49), "scale": floats(1)},
        id="a factor",
    ),
    pytest.param(
        Net(lambda self, audio: self.c(audio[:, None]).mean(2), c=nn.Conv1d(1, 8, 10, stride=5)),
        {"audio": floats(16000)},
        id="a second of sound that gets its channel in the model",
    ),
    pytest.param(
        Net(lambda self, x, hidden: self.c(x, hidden), c=nn.GRUCell(5, 12)),
        {"x": floats(5), "hidden": floats(12)},
        id="a step of a cell",
    ),
    pytest.param(
        Net(lambda self, x: self.c(x.permute(0, 3, 1, 2)).mean((2, 3)), c=nn.Conv2d(3, 8, 3)),
        {"x": floats(224, 224, 3)},
        id="channels last",
    ),
    pytest.param(
        Net(lambda self, x: self.h(self.f(x).mean((1, 2))), f=nn.Linear(3, 8), h=nn.Linear(8, 2)),
        {"x": floats(224, 224, 3)},
        id="channels of pixels",
    ),
    pytest.param(nn.Linear(3, 2).double(), {"input": {"shape": [3], "dtype": "float64"}}, id="doubles"),
    pytest.param(Net(halves, a=nn.Linear(3, 2), b=nn.Linear(5, 2)), {"x": floats(8)}, id="halves"),
]


@pytest.mark.parametrize(("network", "wanted"), FOUND)
def test_inputs_are_found(network: nn.Module, wanted: dict[str, Any]) -> None:
    torch.manual_seed(0)
    inferred = find_inputs(network, [])
    assert {name: each.field() for name, each in inferred.inputs.items()} == wanted
    assert inferred.only_batch is None


def test_the_length_stays_fixed_with_a_note_if_padding_changes_the_answers() -> None:
    network = Net(lambda _, x: 288 + 9 * _.f(_.r(x)[0][:, -1]), r=nn.GRU(6, 8, batch_first=True), f=nn.Linear(8, 1))
    fixed, guess = find_inputs(network, []).notes
    assert fixed.startswith("`x`: every request must have exactly 128: padding changes the model's answers")
    assert guess == "`x`: 128 is a guess, the model takes longer ones as well"


GUESSES: list[Any] = [
    pytest.param(
        Net(lambda self, x: self.c(x).mean((2, 3)), c=nn.Conv2d(3, 4, 3)),
        ("`x`: 224 x 224 is a guess, the model takes other sizes as well",),
        id="sides",
    ),
    pytest.param(
        Net(lambda self, x: self.c(x).mean((2, 3, 4)), c=nn.Conv3d(1, 1, 1)),
        ("`x`: 16 x 224 x 224 is a guess, the model takes other sizes as well",),
        id="sides of a film",
    ),
    pytest.param(
        Net(lambda self, x: self.f(self.c(x).flatten(1)), c=nn.Conv2d(1, 4, 3), f=nn.Linear(4 * 18 * 18, 2)),
        (),
        id="sides that a layer asks for",
    ),
    pytest.param(
        Net(lambda self, ids: self.e(ids).sum(1), e=nn.Embedding(9, 4, padding_idx=0)),
        ("`ids`: 128 is a guess, the model takes longer ones as well",),
        id="length",
    ),
    pytest.param(
        Net(attends, words=nn.Embedding(50, 8), places=position(64), layer=LAYER), (), id="length of the places"
    ),
    pytest.param(
        Net(lambda self, t, v: self.f(torch.stack([t % 60, v, v * v], -1)), f=nn.Linear(3, 2)),
        (
            "`t`: float32 [3] works but is a guess, as no layer shows it; to change: `--input t:…`",
            "`v`: float32 [3] works but is a guess, as no layer shows it; to change: `--input v:…`",
        ),
        id="no layer",
    ),
    pytest.param(
        Net(columns, a=nn.Embedding(5, 4), b=nn.Embedding(3, 4), c=nn.BatchNorm1d(6), head=nn.Linear(14, 2)),
        ("`cats`: each column picks from a table of its own, and allows its rows",),
        id="columns with tables of their own",
    ),
]


@pytest.mark.parametrize(("network", "notes"), GUESSES)
def test_guesses_get_a_note(network: nn.Module, notes: tuple[str, ...]) -> None:
    assert find_inputs(network, []).notes == notes


def test_a_mask_of_no_sequence_gets_a_note_that_its_size_is_a_guess() -> None:
    network = Net(lambda self, x, keep_mask: self.f(x).masked_fill(~keep_mask, 0), f=nn.Linear(8, 8))
    (note,) = find_inputs(network, []).notes
    assert note.startswith("`keep_mask`: bool [1] works but is a guess")


def test_given_inputs_get_no_note() -> None:
    network = Net(lambda self, x: self.c(x).mean((2, 3)), c=nn.Conv2d(3, 4, 3))
    assert find_inputs(network, [parse_input_option("x:float32:3,64,64")]).notes == ()


def test_an_argument_for_the_used_length_may_be_the_whole_length() -> None:
    def forward(self: Any, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        counts = torch.arange(ids.shape[1]) < lengths[:, None]
        return (self.e(ids) * counts[..., None]).sum(1) / lengths[:, None]

    inferred = find_inputs(Net(forward, e=nn.Embedding(9, 4)), [])
    assert {name: tensor.field() for name, tensor in inferred.inputs.items()} == {
        "ids": ids(128, 8),
        "lengths": {"shape": [], "dtype": "int64", "min": 1, "max": 128},
    }
    assert (
        "`lengths`: 1 to 128, how much of `ids` is used; every request must itself pad `ids` to 128" in inferred.notes
    )


class Dictionary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.f = nn.Linear(3, 2)

    def forward(self, batch: Any, scale: Any) -> Any:
        return self.f(batch["x"]) * scale + batch["y"]


def test_a_dictionary_is_refused_with_a_wrapper_that_takes_its_values() -> None:
    with pytest.raises(InputError) as caught:
        find_inputs(Dictionary(), [])
    assert caught.value.message == "`--source`: `forward` takes `batch`, a dictionary of `x`, `y`, allowed: tensors"
    made: dict[str, Any] = {"Dictionary": Dictionary}
    assert caught.value.hint is not None
    exec(caught.value.hint, made)
    values = [parse_input_option(text) for text in ("x:float32:3", "y:float32:2", "scale:float32:2")]
    inferred = find_inputs(made["Rows"](), values)
    assert (list(inferred.inputs), inferred.outputs) == (["x", "y", "scale"], ((2,),))


def test_inputs_that_were_not_found_are_asked_for_with_the_shapes_tried() -> None:
    def forward(self: Any, nodes: torch.Tensor, adjacency: torch.Tensor) -> torch.Tensor:
        return torch.bmm(adjacency, self.f(nodes))

    with pytest.raises(InputError) as caught:
        find_inputs(Net(forward, f=nn.Linear(5, 2)), [])
    assert caught.value.hint is not None
    assert re.fullmatch(
        r"--input nodes:float32:\S+ --input adjacency:float32:\S+, with the real sizes", caught.value.hint
    )
    assert "3,224,224" not in caught.value.hint


def test_a_model_that_looks_at_the_whole_batch_gets_one_row_at_a_time() -> None:
    assert find_inputs(Net(lambda self, x: self.f(x) / x.norm(), f=nn.Linear(4, 2)), []).only_batch == 1


def test_an_endless_loop_is_interrupted() -> None:
    def stuck(self: Any, x: torch.Tensor) -> torch.Tensor:
        while x.ndim == 2:
            x = x + 0
        return self.f(x)

    inferred = find_inputs(Net(stuck, f=nn.Linear(4, 2)), [parse_input_option("x:float32:9,4")])
    assert inferred.inputs["x"].shape == (9, 4)


def test_states_with_one_row_per_input_row_are_found() -> None:
    network = Net(steps, r=nn.LSTM(6, 8, num_layers=2, batch_first=True))
    inferred = find_inputs(network, [parse_input_option("x:float32:4,6")])
    assert {name: each.shape for name, each in inferred.inputs.items()} == {"x": (4, 6), "h": (2, 8), "c": (2, 8)}
    assert (inferred.only_batch, inferred.names) == (None, ("y", "h", "c"))


def test_states_in_a_tuple_are_refused_with_a_wrapper_that_takes_them_as_rows() -> None:
    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.r = nn.LSTM(7, 4, batch_first=True)

        def forward(self, x: Any, state: Any) -> Any:
            return self.r(x, state)

    given = [parse_input_option("x:float32:4,7")]
    with pytest.raises(SourceError) as caught:
        find_inputs(Steps(), given)
    made: dict[str, Any] = {"Steps": Steps}
    assert caught.value.hint is not None
    exec(caught.value.hint, made)
    inputs = find_inputs(made["Rows"](), given).inputs
    assert (inputs["h"].shape, inputs["c"].shape) == ((1, 4), (1, 4))


def test_states_with_the_batch_second_are_refused_with_a_wrapper() -> None:
    network = Net(lambda self, x, h, c: self.r(x, (h, c))[0][:, -1], r=nn.LSTM(7, 4, 2, batch_first=True))
    with pytest.raises(SourceError, match="takes states of `r`, 2 x batch x 4, but requests are rows"):
        find_inputs(network, [parse_input_option("x:float32:4,7")])


@pytest.mark.slow
def test_states_among_the_outputs_are_not_taken_for_rows() -> None:
    network = Net(lambda self, x: self.r(x), r=nn.GRU(5, 8, 2, batch_first=True))
    with pytest.raises(SourceError, match=re.escape("an output is (2, 5, 8) for 5 rows")):
        find_inputs(network, [])


def test_a_lazy_layer_does_not_say_what_it_takes() -> None:
    network = Net(lambda self, x: self.c(x).mean((2, 3)), c=nn.LazyConv2d(4, 3))
    with pytest.raises(InputError, match="missing for `x`: no layer shows what `forward` takes"):
        find_inputs(network, [])


def test_a_sequence_that_cannot_be_a_single_step_keeps_its_length() -> None:
    network = Net(
        lambda self, ids, mask: self.c((self.e(ids) * mask.unsqueeze(-1)).transpose(1, 2)).relu().amax(-1),
        e=nn.Embedding(50, 8),
        c=nn.Conv1d(8, 4, 5, bias=False),
    )
    torch.manual_seed(0)
    assert find_inputs(network, []).inputs["ids"].field()["shape"] == [128]


def test_an_argument_that_is_not_a_tensor_is_named() -> None:
    def forward(self: Any, x: torch.Tensor, times: int) -> torch.Tensor:
        return self.f(x) * times

    with pytest.raises(InputError, match=r"`forward` takes `times: int`, allowed: tensors"):
        find_inputs(Net(forward, f=nn.Linear(4, 2)), [])


@pytest.mark.parametrize("text", ["x", "x:float32", "x:float32:{max}", "x y:float32:3", "x:float32:0"])
def test_a_malformed_input_option_gets_the_right_form(text: str) -> None:
    with pytest.raises(InputError, match=r"allowed: NAME:DTYPE:SHAPE such as `ids:int64:128`"):
        parse_input_option(text)


def test_only_the_given_input_is_tried() -> None:
    network = Net(lambda self, a, b: self.f(torch.cat([a, b], 1)), f=nn.Linear(9, 2))
    inferred = find_inputs(network, [parse_input_option("a:float32:4")])
    assert {name: each.shape for name, each in inferred.inputs.items()} == {"a": (4,), "b": (5,)}
    with pytest.raises(InputError, match="got `c`, allowed: `a`, `b`, the arguments of `forward`"):
        find_inputs(network, [parse_input_option("c:float32:4")])
