"""What a network's outputs mean is read from what is written down, and nothing else is guessed."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from marina.archiver.inferring import output_names
from marina.archiver.meaning import Meaning, Unsaid, meaning_of_task, read_meaning, trace
from marina.handlers.networks import import_source, without_dataclasses


class Net(nn.Module):
    """Features of a picture, given to a layer of a certain name, and what follows it."""

    def __init__(self, name: str = "", *, count: int = 4, then: Callable[[Any], Any] = lambda value: value) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 6, 3, padding=1)
        self.name, self.then = name, then
        if name:
            setattr(self, name, nn.Linear(6, count))

    def forward(self, picture: torch.Tensor) -> Any:
        pooled = self.layer(picture).mean((2, 3))
        return self.then(getattr(self, self.name)(pooled) if self.name else pooled)


class PixelNet(nn.Module):
    def __init__(self, count: int, then: Callable[[Any], Any] = lambda value: value) -> None:
        super().__init__()
        self.layer, self.then = nn.Conv2d(3, count, 3, padding=1), then

    def forward(self, picture: torch.Tensor) -> Any:
        return self.then(self.layer(picture))


class TinyUnet(PixelNet):
    pass


class SegResNet(PixelNet):
    pass


class ImageClassifier(Net):
    pass


class DepthUnet(PixelNet):
    pass


class Detector(nn.Module):
    def __init__(self, outputs: Callable[[torch.Tensor], Any], model_type: str | None = None) -> None:
        super().__init__()
        self.layer, self.outputs = nn.Conv2d(3, 20, 3), outputs
        self.config = SimpleNamespace(model_type=model_type) if model_type else None

    def forward(self, picture: torch.Tensor) -> Any:
        return self.outputs(self.layer(picture).mean((2, 3)).reshape(-1, 5, 4))


def with_(network: nn.Module, **attributes: Any) -> nn.Module:
    for name, value in attributes.items():
        setattr(network, name, value)
    return network


def corners(found: torch.Tensor) -> torch.Tensor:
    first = found[..., :2].abs() * 100
    return torch.cat([first, first + 10], -1)


def shares(found: torch.Tensor) -> torch.Tensor:
    return found[..., 0].sigmoid()


def read(network: nn.Module, task: str | None = None) -> Meaning | Unsaid | None:
    torch.manual_seed(0)
    pictures = torch.rand(2, 3, 8, 8)
    names = output_names(without_dataclasses(network.eval()(pictures)))
    traced = trace(network, pictures, names)
    return read_meaning(traced) if task is None else meaning_of_task(traced, task)


SAID = [
    pytest.param(Net("classifier"), "classify", "softmax", id="layer called classifier"),
    pytest.param(Net("fc"), "classify", "softmax", id="layer called fc"),
    pytest.param(with_(Net("last"), num_classes=4), "classify", "softmax", id="number of classes"),
    pytest.param(with_(Net("last"), loss=nn.CrossEntropyLoss()), "classify", "softmax", id="loss"),
    pytest.param(with_(Net("last"), loss=nn.BCEWithLogitsLoss()), "classify", "sigmoid", id="loss of many classes"),
    pytest.param(Net("last", then=lambda value: value.log_softmax(-1)), "classify", "softmax", id="log softmax"),
    pytest.param(Net("fc", then=lambda value: value.softmax(-1)), "classify", "none", id="softmax"),
    pytest.param(Net("fc", then=lambda value: value.sigmoid()), "classify", "none", id="sigmoid"),
    pytest.param(Net("embedding"), "embed", None, id="layer called embedding"),
    pytest.param(with_(Net(), num_classes=0), "embed", None, id="no classes"),
    pytest.param(Net("last", then=lambda value: nn.functional.normalize(value)), "embed", None, id="length 1"),
    pytest.param(ImageClassifier("last"), "classify", "softmax", id="network called a classifier"),
    pytest.param(Net("class_layers"), "classify", "softmax", id="layers of classes"),
    pytest.param(SegResNet(3), "segment", "softmax", id="network called after segmentation"),
    pytest.param(TinyUnet(2), "segment", "softmax", id="mask of classes"),
    pytest.param(TinyUnet(1), "segment", "sigmoid", id="mask of logits"),
    pytest.param(TinyUnet(1, then=lambda value: value.sigmoid()), "segment", "none", id="mask of a sigmoid"),
    pytest.param(TinyUnet(3, then=lambda value: value.softmax(1)), "segment", "none", id="mask of a softmax"),
    pytest.param(
        Detector(
            lambda found: {"boxes": corners(found), "scores": found[..., 0].sigmoid(), "labels": found[..., 0].int()}
        ),
        "detect",
        "none",
        id="boxes, scores and labels",
    ),
    pytest.param(
        Detector(lambda found: {"logits": found, "pred_boxes": found}, "detr"), "detect", "softmax", id="DETR"
    ),
    pytest.param(
        Detector(lambda found: {"logits": found, "pred_boxes": found}, "rt_detr"), "detect", "sigmoid", id="RT-DETR"
    ),
]
UNSAID = [
    pytest.param(Net("last"), "--task classify, or --task embed", id="a layer that says nothing"),
    pytest.param(Net(), "--task classify, or --task embed", id="hidden features"),
    pytest.param(
        with_(Net("fc"), loss=nn.MSELoss()), "--handler tensor, or --task embed, or --task classify", id="regression"
    ),
    pytest.param(PixelNet(4), "--task segment, or --handler tensor", id="numbers for each pixel"),
    pytest.param(TinyUnet(3), "--task segment, or --handler tensor", id="as many channels as a picture"),
    pytest.param(DepthUnet(1), "--task segment, or --handler tensor", id="depth"),
    pytest.param(TinyUnet(4, then=lambda value: value.sigmoid()), "--handler tensor", id="several classes for a pixel"),
    pytest.param(
        Detector(lambda found: {"logits": found, "pred_boxes": found}),
        "--task detect --set 'outputs: [boxes, scores]' --set 'detection: {boxes: xyxy, unit: pixels}' "
        "--set 'activation: sigmoid'",
        id="logits of nobody knows what",
    ),
    pytest.param(
        Detector(lambda found: {"boxes": corners(found), "scores": found[..., 0] * 100}),
        "--task detect --set 'outputs: [boxes, scores]' --set 'detection: {boxes: xyxy, unit: pixels}' "
        "--set 'activation: sigmoid'",
        id="scores that are none",
    ),
    pytest.param(
        Detector(lambda found: {"boxes": corners(found), "scores": found[..., 0].int()}),
        "--task detect --set 'outputs: [boxes, scores]' --set 'detection: {boxes: xyxy, unit: pixels}' "
        "--set 'activation: none'",
        id="whole numbers",
    ),
    pytest.param(
        Detector(lambda found: {"boxes": found.sigmoid(), "scores": found[..., 0].sigmoid()}),
        "--task detect --set 'detection: {boxes: cxcywh, unit: fraction}'",
        id="boxes as shares",
    ),
    pytest.param(
        Detector(lambda found: (corners(found), found[..., 0].sigmoid())),
        "--task detect --set 'outputs: [boxes, scores]' --set 'detection: {boxes: xyxy, unit: pixels}' "
        "--set 'activation: none'",
        id="boxes without names",
    ),
]


@pytest.mark.parametrize(("network", "task", "activation"), SAID)
def test_what_is_written_down_is_read(network: nn.Module, task: str, activation: str | None) -> None:
    meaning = read(network)
    assert isinstance(meaning, Meaning)
    assert (meaning.task, meaning.activation) == (task, activation)


@pytest.mark.parametrize(("network", "hint"), UNSAID)
def test_what_is_not_written_down_is_not_guessed(network: nn.Module, hint: str) -> None:
    unsaid = read(network)
    assert isinstance(unsaid, Unsaid)
    assert unsaid.hint == hint


def test_outputs_of_no_task_are_no_error() -> None:
    assert read(PixelNet(4, then=lambda value: (value, value[:, :2]))) is None
    assert read(Net("fc", count=1)) is None


def test_the_user_says_the_task_and_the_network_the_rest() -> None:
    assert read(Net("last"), "classify") == Meaning("classify", "`--task classify`", "softmax")
    assert read(Net("fc"), "embed") == Meaning("embed", "`--task embed`", outputs=("embedding",))
    assert read(PixelNet(1, then=lambda value: value.sigmoid()), "segment") == Meaning(
        "segment", "`--task segment`", "none"
    )


def test_the_losses_in_its_file_say_what_its_numbers_are(tmp_path: Path) -> None:
    code = "from torch import nn\n\ndef loss(found, wanted):\n    return nn.functional.{}(found, wanted)\n\n"
    code += "class Net(nn.Sequential):\n    pass\n\ndef build():\n"
    code += "    return Net(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())\n"
    found = {}
    for loss in ("cross_entropy", "binary_cross_entropy_with_logits", "mse_loss", "triplet_margin_loss"):
        file = tmp_path / f"of_{loss}.py"
        file.write_text(code.format(loss), encoding="utf-8")
        module = import_source(file)
        found[loss] = read(module.build())
        del sys.modules[module.__name__]
    assert [getattr(meaning, "activation", None) for meaning in found.values()] == ["softmax", "sigmoid", None, None]
    assert isinstance(found["mse_loss"], Unsaid)
    assert getattr(found["triplet_margin_loss"], "task", None) == "embed"
