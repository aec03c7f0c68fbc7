"""Models whose answers depend on chance, on earlier requests or on the rest of the batch are refused with the line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from specs import make_spec
from torch import nn

from marina.archiver.graph import build_graph, examples, output_ports
from marina.archiver.package import check_row_answers, package
from marina.archiver.rows import check_repeatable, check_rows_apart
from marina.archiver.sources import load_source
from marina.config.errors import SourceError
from marina.config.progress import Progress
from marina.config.record import Port
from marina.handlers.networks import TensorGraph

FRAME = """
import torch
from torch import nn
from torch.nn import functional as F

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.norm = nn.BatchNorm1d(3)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        x = self.layer(x)
        {code}
        return x
"""
LINE = 16
IN_BATCH = "the answer to an input depends on the other inputs of its batch"
DRAWN = "draws a random number, so the same input is answered differently every time"
ONE_BY_ONE = "use `batch_sizes: [1]`, or a model that computes each row independently"
DROPS = "use evaluation mode: `F.dropout(x, p, self.training)`, and no layer that stays in training mode"
AVERAGES = "use evaluation mode, which normalises by the averages of the training; or `batch_sizes: [1]`"
MIXED = {
    "softmax over the batch": ("x = x.softmax(0)", ONE_BY_ONE),
    "mean over the batch": ("x = x - x.mean(0)", ONE_BY_ONE),
    "first row": ("x = x - x[0]", ONE_BY_ONE),
    "a little of the others": ("x = x + 0.01 * x.sum(0)", ONE_BY_ONE),
    "a little beside the answers' size": ("x = x + x.mean(0) + 2000", ONE_BY_ONE),
    "batch norm in training": ("x = self.norm.train()(x)", AVERAGES),
    "batch norm without averages": ("x = F.batch_norm(x, None, None, training=True)", AVERAGES),
    "loop over all rows": ("while x.norm() > 0.1: x = x * 0.9", ONE_BY_ONE),
    "branch over all rows": ("x = x * 2 if x[0, 0] > x[-1, 0] else x", ONE_BY_ONE),
}
RANDOM = {
    "dropout that is always on": ("x = F.dropout(x)", DROPS),
    "dropout that stays in training": ("x = self.drop.train()(x)", DROPS),
    "noise": (
        "x = x + torch.rand(3)",
        "pass the random values as an input of `forward`, or set `min_agreement: 0` to serve the model as it is",
    ),
}
TABLE: dict[str, Any] = {
    "model.source": "./model.py:Net",
    "model.handler": "tensor",
    "model.inputs": {"x": {"shape": [4]}},
}


def graph(*layers: nn.Module) -> nn.Module:
    return TensorGraph(nn.Sequential(*layers), torch.float32).eval()


def refused(folder: Path, code: str, changes: dict[str, Any] | None = None) -> tuple[str, str | None]:
    (folder / "model.py").write_text(FRAME.format(code=code), encoding="utf-8")
    spec = make_spec(TABLE | (changes or {}), folder / "spec.yaml")
    with pytest.raises(SourceError) as raised:
        package(spec, folder / "build", progress=Progress(quiet=True))
    assert not (folder / "build").exists()
    return raised.value.message, raised.value.hint


@pytest.mark.parametrize("compiled", ["aot", "eager"])
@pytest.mark.parametrize("kind", MIXED)
def test_a_model_that_mixes_the_rows_of_a_batch_is_refused_with_its_line(
    kind: str, compiled: str, tmp_path: Path
) -> None:
    code, hint = MIXED[kind]
    said = refused(tmp_path, code, {"model.compile": compiled})
    assert said == (f"{tmp_path}/model.py:{LINE}: `{code}`: {IN_BATCH}", hint)


@pytest.mark.parametrize("batch_sizes", [[1], [1, 4]])
@pytest.mark.parametrize("kind", RANDOM)
def test_a_model_that_draws_random_numbers_is_refused_with_its_line(
    kind: str, batch_sizes: list[int], tmp_path: Path
) -> None:
    code, hint = RANDOM[kind]
    said = refused(tmp_path, code, {"model.batch_sizes": batch_sizes})
    assert said == (f"{tmp_path}/model.py:{LINE}: `{code}`: {DRAWN}", hint)


def test_a_model_that_keeps_state_between_requests_is_refused_with_its_name(tmp_path: Path) -> None:
    message, _ = refused(tmp_path, "self.calls += 1; x = x * self.calls", {"model.batch_sizes": [1]})
    assert message.endswith("the same input differently the second time: `calls` changes with every request")


def test_weights_that_are_not_numbers_are_named(tmp_path: Path) -> None:
    save_file({"weight": torch.full((3, 4), float("nan")), "bias": torch.ones(3)}, tmp_path / "w.safetensors")
    (tmp_path / "model.py").write_text("from torch import nn\n\ndef build():\n    return nn.Linear(4, 3)\n")
    changes = TABLE | {"model.source": "./model.py:build", "model.weights": "./w.safetensors"}
    with pytest.raises(SourceError, match="the model answers some generated inputs with NaN") as raised:
        package(make_spec(changes, tmp_path / "spec.yaml"), tmp_path / "build", progress=Progress(quiet=True))
    assert raised.value.hint == "compare its weights with those of the training: `weight` holds NaN"


def test_a_model_that_remembers_only_the_last_request_is_refused(tmp_path: Path) -> None:
    message, _ = refused(tmp_path, "last, self.calls = self.calls, x.sum(); x = x + last", {"model.batch_sizes": [1]})
    assert message.endswith("the model answers the same input differently the second time: it keeps some state")


def test_a_single_batch_size_does_not_help_because_batches_are_filled_up(tmp_path: Path) -> None:
    assert IN_BATCH in refused(tmp_path, "x = x.softmax(0)", {"model.batch_sizes": [4]})[0]


@pytest.mark.parametrize("code", ["x = -x if len(x) == 1 else x", "x = x / len(x) + 100"])
def test_a_model_that_answers_a_single_row_differently_is_refused_for_batches(code: str, tmp_path: Path) -> None:
    message, hint = refused(tmp_path, code, {"model.compile": "eager"})
    assert (
        "`model.batch_sizes`: got [1, 4], but the model answers an input differently in a batch than alone" in message
    )
    assert hint == "use `batch_sizes: [1]`, or a model that decides for each row separately"


PICTURES = """
from types import SimpleNamespace

from torch import nn

config = SimpleNamespace(problem_type=None)

class Unit(nn.Module):
    def forward(self, x):
        return nn.functional.normalize(x)

class Whole(nn.Module):
    def forward(self, x):
        return (9 * x).long()

class Many(nn.Identity):
    def __init__(self):
        super().__init__()
        config.problem_type = "multi_label_classification"

"""


def check_of_pictures(folder: Path, layers: str) -> Callable[[], tuple[Port, ...]]:
    """The check of a model that takes pictures of 8 x 8 pixels, which returns its outputs."""
    (folder / "model.py").write_text(
        f"{PICTURES}net = nn.Sequential({layers})\nnet.config = config\n", encoding="utf-8"
    )
    image = {"height": 8, "width": 8, "channels": 1}
    changes = {"model.source": "./model.py:net", "model.handler": "image", "model.image": image}
    spec = make_spec(changes, folder / "spec.yaml")
    loaded = load_source(spec)
    graph, pictures = build_graph(spec, loaded, "fp32"), examples(spec, loaded, 4)

    def check() -> tuple[Port, ...]:
        ports = output_ports(spec, graph, pictures)
        check_row_answers(spec, graph, pictures)
        return ports

    return check


@pytest.mark.parametrize(
    ("layers", "shape"),
    [
        ("nn.Flatten(), nn.Linear(64, 1)", "[1]"),
        ("nn.Flatten(), nn.Linear(64, 1), nn.Flatten(0)", "[]"),
        ("nn.Conv2d(1, 6, 3, padding=1)", "[6, 8, 8]"),
        ("nn.Flatten(), nn.LSTM(64, 6)", "[6], [6], [6]"),
    ],
    ids=["one number", "a number", "a mask", "several outputs"],
)
def test_a_picture_model_that_scores_no_classes_is_refused(layers: str, shape: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError) as raised:
        check_of_pictures(tmp_path, layers)()
    expected = f"the model's output for a picture is {shape}, allowed: [N], a number for each of two classes or more"
    assert raised.value.message.endswith(expected)


def test_an_answer_names_all_classes_if_there_are_fewer_than_it_may_name(tmp_path: Path) -> None:
    ports = check_of_pictures(tmp_path, "nn.Flatten(), nn.Linear(64, 3)")()
    assert [port.shape for port in ports] == [(3,), (3,)]


@pytest.mark.parametrize(
    ("layers", "answers", "hint"),
    [
        ("nn.Softmax(-1)", "probabilities", "activation: none"),
        ("nn.Sigmoid(), nn.Unflatten(1, (2, 3)), nn.Flatten()", "a sigmoid for each class", "activation: none"),
        ("nn.Hardsigmoid(inplace=True)", "a sigmoid for each class", "activation: none"),
        ("Unit()", "vectors of length 1, as embeddings have", "task: embed, and `outputs: [embedding]`"),
        ("Many()", "numbers for `multi_label_classification`, as its configuration says", "activation: sigmoid"),
        ("nn.LogSoftmax(-1)", None, ""),
        ("Whole()", None, ""),
        ("nn.Sigmoid(), nn.Linear(6, 6)", None, ""),
        ("nn.Sigmoid(), nn.Threshold(0.5, 0, inplace=True)", None, ""),
    ],
)
def test_a_picture_model_whose_numbers_are_no_scores_of_which_one_applies_is_refused(
    layers: str, answers: str | None, hint: str, tmp_path: Path
) -> None:
    checked = check_of_pictures(tmp_path, f"nn.Flatten(), nn.Linear(64, 6), {layers}")
    if answers is None:
        checked()
        return
    with pytest.raises(SourceError, match=f"the model answers pictures with {answers}, but the handler") as raised:
        checked()
    assert str(raised.value.hint).startswith(hint)


def test_the_operator_of_a_program_is_named() -> None:
    network = nn.Sequential(nn.Linear(4, 3), nn.Softmax(0))
    program = torch.export.export(network, (torch.rand(4, 4),)).module()
    with pytest.raises(SourceError, match="inputs of its batch, by its operator `aten::_softmax`"):
        check_rows_apart("here", TensorGraph(program, torch.float32), [torch.rand(4, 4)], 4)


def test_a_program_that_was_exported_in_training_mode_has_to_be_exported_again() -> None:
    network = nn.Sequential(nn.Linear(4, 3), nn.Dropout()).train()
    program = torch.export.export(network, (torch.rand(4, 4),)).module()
    with pytest.raises(SourceError, match="by its operator `aten::bernoulli_`") as raised:
        check_repeatable("here", TensorGraph(program, torch.float32), [torch.rand(4, 4)], 4)
    assert raised.value.hint == "export it in evaluation mode: `torch.export.export(model.eval(), …)`"


@pytest.mark.parametrize("batch", [1, 2, 3, 8])
def test_a_model_that_computes_each_row_independently_passes(batch: int) -> None:
    network = graph(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout())
    check_repeatable("here", network, [torch.rand(16, 4)], batch)
    check_rows_apart("here", network, [torch.rand(16, 4)], batch)


def test_the_check_leaves_the_random_numbers_as_they_were() -> None:
    before = torch.get_rng_state()
    with pytest.raises(SourceError):
        check_repeatable("here", graph(nn.Dropout()).train(), [torch.ones(16, 4)], 4)
    assert torch.equal(torch.get_rng_state(), before)
