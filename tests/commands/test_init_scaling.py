"""How pictures become a model's input is said by its library or by the options of `init`, and never guessed."""

from pathlib import Path

import pytest

import marina
from marina.config.load import load_spec

pytestmark = pytest.mark.slow

NETS = """
from torch import nn

class Fixed(nn.Module):
    def __init__(self, channels=3):
        super().__init__()
        self.layer, self.head = nn.Conv2d(channels, 4, 8, stride=8), nn.Linear(64, 3)

    def forward(self, x):
        return self.head(self.layer(x).flatten(1))

def grey():
    return Fixed(1)

def free():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))

def known():
    import torchvision
    return torchvision.models.shufflenet_v2_x0_5(weights=None)
"""
ASKED = [
    pytest.param(
        ["nets.py:free", "--task", "classify"],
        "their size (224 x 224 works, and so do others), what happens to those of another shape, what is made of their "
        "pixels\n\nhint: --input input:float32:3,224,224 --fit crop --normalize imagenet; --fit: crop, crop:256, "
        "letterbox or squash; --normalize: imagenet, 0..1, 0..255, or mean and std, such as 0.5/0.5\n",
        id="everything",
    ),
    pytest.param(
        ["nets.py:Fixed"],
        "training: what happens to those of another shape, what is made of",
        id="a size that is fixed",
    ),
    pytest.param(["nets.py:Fixed", "--fit", "squash"], "hint: --normalize imagenet; --normalize: ", id="levels"),
    pytest.param(["nets.py:Fixed", "--normalize", "imagenet"], "hint: --fit crop; --fit: ", id="fit"),
    pytest.param(["nets.py:Fixed", "--handler", "own"], "hint: --fit crop --normalize imagenet; ", id="own handler"),
    pytest.param(["nets.py:grey"], "hint: --fit crop --normalize 0..1; ", id="grey"),
]
WRONG = [
    pytest.param(
        ["nets.py:grey", "--normalize", "imagenet"], "got `imagenet`, allowed: `0..1`, `0..255`, or", id="grey"
    ),
    pytest.param(
        ["nets.py:Fixed", "--normalize", "0.5/0"], "got `0.5/0`, allowed: `0..1`, `0..255`, `imag", id="std 0"
    ),
    pytest.param(["nets.py:Fixed", "--normalize", "1,2/1"], "got `1,2/1`, allowed: ", id="two of three channels"),
    pytest.param(["nets.py:Fixed", "--fit", "squash:3"], "`--fit`: got `squash:3`, allowed: `crop`, `letter", id="fit"),
    pytest.param(["nets.py:Fixed", "--handler", "tensor", "--fit", "crop"], "`handler` is `tensor`", id="tensors"),
]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets.py").write_text(NETS, encoding="utf-8")


def init(*arguments: str) -> int:
    return marina.main(["init", "mine", "--quiet", "--source", *arguments])


@pytest.mark.parametrize(("arguments", "words"), [*ASKED, *WRONG])
def test_what_nothing_says_is_asked_and_wrong_answers_are_errors(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init(*arguments) == 2
    assert words in capsys.readouterr().err
    assert not Path("mine").exists()


@pytest.mark.parametrize(
    ("options", "levels"),
    [
        (["--normalize", "imagenet"], ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))),
        (["--normalize", "0..1"], ((0.0,), (1.0,))),
        (["--normalize", "0..255"], ((0.0,), (0.00392157,))),
        (["--normalize", "0.1,0.2,0.3/0.5"], ((0.1, 0.2, 0.3), (0.5,))),
    ],
)
def test_the_spec_has_what_the_options_say(options: list[str], levels: tuple[tuple[float, ...], ...]) -> None:
    assert init("nets.py:Fixed", "--fit", "letterbox", *options) == 0
    image = load_spec(Path("mine/spec.yaml")).model.image
    assert image is not None
    assert (image.fit, image.mean, image.std) == ("letterbox", *levels)


def test_a_crop_is_of_a_larger_picture_where_the_option_says_so() -> None:
    assert init("nets.py:Fixed", "--fit", "crop:40", "--normalize", "0..1") == 0
    image = load_spec(Path("mine/spec.yaml")).model.image
    assert image is not None
    assert (image.fit, image.height, image.resize) == ("crop", 32, 40)


def test_options_go_before_what_the_library_says_and_the_rest_stays(capsys: pytest.CaptureFixture[str]) -> None:
    assert init("nets.py:known", "--normalize", "0.5/0.5") == 0
    image = load_spec(Path("mine/spec.yaml")).model.image
    assert image is not None
    assert (image.mean, image.fit, image.resize) == ((0.5,), "crop", 256)
    assert "as torchvision's weights need" in capsys.readouterr().out
