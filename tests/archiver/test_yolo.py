"""Detectors of ultralytics, from a file that it wrote, by a stand-in for it: its networks' form, and not its code."""

import io
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import marina
from marina.archiver import compiling
from marina.archiver.graph import build_graph, examples
from marina.archiver.sources import load_source
from marina.archiver.staging import _explicit_image
from marina.config.load import load_spec
from marina.handlers.detection import find_objects
from marina.handlers.pictures import decode_placed
from marina.handlers.record import parse_image

NETS = '''
import torch
from torch import nn


class Detect(nn.Module):
    """A head that keeps the places of its boxes for one shape, as theirs does."""

    shape, places, end2end = None, None, False

    def forward(self, x):
        if self.shape != x.shape:
            down, across = torch.meshgrid(*(torch.arange(side) * 8 + 4.0 for side in x.shape[2:]), indexing="ij")
            self.places, self.shape = torch.stack([across, down]).flatten(1), x.shape
        sides = x[:, :2].flatten(2).sigmoid() * 16 + 8
        boxes = torch.cat([self.places.expand_as(sides), sides], 1)
        scores = x[:, 2:].flatten(2).sigmoid()
        if not self.end2end:
            return torch.cat([boxes, scores], 1), {"feats": x}
        score, number = scores.max(1)
        corners = torch.cat([boxes[:, :2] - sides / 2, boxes[:, :2] + sides / 2], 1)
        return torch.cat([corners, score[:, None], number[:, None].float()], 1).transpose(1, 2)[:, :20], {}


class DetectionModel(nn.Module):
    def __init__(self, end2end=False):
        super().__init__()
        self.model = nn.ModuleList([nn.Conv2d(3, 5, 8, 8), Detect()])
        self.model[-1].end2end = end2end
        self.names, self.args = {0: "cat", 1: "dog", 2: "owl"}, {"imgsz": 64}

    def forward(self, x):
        return self.model[1](self.model[0](x * 2 - 1))


class PoseModel(DetectionModel):
    pass
'''


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    name = "ultralytics.nn.tasks"
    for module in ("ultralytics", "ultralytics.nn", name):
        made = ModuleType(module)
        made.__path__ = []
        monkeypatch.setitem(sys.modules, module, made)
    (tmp_path / "tasks.py").write_text(NETS, encoding="utf-8")
    exec(compile(NETS, str(tmp_path / "tasks.py"), "exec"), vars(sys.modules[name]))
    torch.manual_seed(0)
    return sys.modules[name]


def init(network: nn.Module, *more: str) -> int:
    torch.save({"model": None, "ema": network.half()}, "yolo.pt")
    return marina.main(["init", "mine", "--quiet", "--source", "./yolo.pt", "--trust-pickle", *more])


@pytest.mark.parametrize("end2end", [False, True])
def test_a_detector_is_served_as_it_was_trained(nets: Any, end2end: bool, capsys: pytest.CaptureFixture[str]) -> None:
    network = nets.DetectionModel(end2end)
    assert init(network) == 0, capsys.readouterr().err
    spec = load_spec(Path("mine/spec.yaml"))
    source = load_source(spec)
    assert source.labels == ("cat", "dog", "owl")
    how = parse_image(_explicit_image(spec, source.image).model_dump())  # type: ignore[arg-type]
    assert how.detection is not None
    assert (how.fit, how.fill, how.mean, how.height) == ("letterbox", 114, (0, 0, 0), 64)
    assert how.detection.overlap == (None if end2end else 0.7)
    body = io.BytesIO()
    picture = np.random.default_rng(0).integers(0, 256, (32, 64, 3), dtype=np.uint8)
    Image.fromarray(picture).save(body, "PNG")
    pixels, placement = decode_placed(body.getvalue(), how)
    program = compiling.export_graph(spec, build_graph(spec, source, "fp32"), examples(spec, source, 2), source)
    # Another number of rows than the head has seen.
    rows = torch.from_numpy(np.ascontiguousarray(pixels))[None].expand(3, -1, -1, -1).contiguous()
    with torch.no_grad():
        outputs = [output[2].numpy() for output in program.module()(rows)]
        boxed = np.full((64, 64, 3), 114, np.uint8)
        boxed[16:48] = picture
        (theirs,) = network.float()(torch.from_numpy(boxed).permute(2, 0, 1)[None] / 255)[0]
    scores, boxes, *labels = outputs
    found = find_objects(boxes, scores, *(labels or [None]), how.detection, activation="none", size=(64, 64))
    if end2end:
        best = theirs[theirs[:, 4].argmax()].numpy()
        corners, score, number = best[:4], best[4], best[5]
    else:
        at = int(theirs[4:].max(0).values.argmax())
        (across, down, width, height), shares = theirs[:4, at].numpy(), theirs[4:, at].numpy()
        corners = np.array([across - width / 2, down - height / 2, across + width / 2, down + height / 2])
        score, number = shares.max(), shares.argmax()
    assert (found.classes[0], found.scores[0]) == (number, pytest.approx(score, abs=1e-4))
    expected = (corners - [0, 16, 0, 16]).clip(0, [64, 32, 64, 32])
    assert np.abs(placement.to_picture(found.boxes[:1])[0] - expected).max() < 1e-2


def test_what_is_no_detector_of_theirs_is_not_served_as_one(nets: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert init(nets.PoseModel()) == 2
    assert "a `PoseModel` of ultralytics, of whose kinds only the `DetectionModel`" in capsys.readouterr().err
