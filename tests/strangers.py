"""The kinds of models that strangers bring: their files, and what is typed after `marina init NAME`."""

from pathlib import Path
from typing import Any

from specs import ROOT

MODELS = (Path(__file__).parent / "foreign/kinds.py").read_text(encoding="utf-8")
ENCODER = ROOT / "config/examples/language/model"
# How pictures were given to a network of its own in its training, which only its user knows.
GREY = ["--fit", "crop", "--normalize", "0.1307/0.3081"]
ARGUMENTS: dict[str, list[str]] = {
    "table": ["--source", "kinds.py:Table"],
    "text with a handler": ["--source", "kinds.py:Words", "--template", "text"],
    "detection": [
        *("--source", "kinds.py:Boxes", "--task", "detect"),
        *("--set", "detection: {boxes: cxcywh, unit: fraction, min_score: 0.4}"),
        *("--input", "images:float32:3,224,224", "--fit", "squash", "--normalize", "imagenet"),
    ],
    "lengths": ["--source", "kinds.py:Words"],
    "mask": [
        *("--source", "kinds.py:segments", "--task", "segment"),
        *("--input", "input:float32:3,224,224", "--fit", "squash", "--normalize", "0.5/0.5"),
    ],
    "program": ["--source", "words.pt2"],
    "checkpoint": ["--source", "kinds.py:Cells", "--weights", "checkpoint.pt", *GREY],
    "encoder": ["--source", f"hf:{ENCODER}"],
    "control flow": ["--source", "kinds.py:Shrinks"],
    "vectors": ["--source", "kinds.py:Cells", "--weights", "checkpoint.pt", "--task", "embed", *GREY],
    "names": ["--source", "kinds.py:Scales"],
    "package": ["--source", "shrinking/network.py:build"],
}
# A package whose files import each other relatively.
PACKAGE = {
    "__init__.py": "from .network import build\n",
    "network.py": "from .parts.layers import Shrinks\n\ndef build():\n    return Shrinks()\n",
    "parts/__init__.py": "from ..scale import HALF\n",
    "parts/layers.py": MODELS,
    "scale.py": "HALF = 0.5\n",
}


def write_files(folder: Path) -> None:
    """All that the arguments name."""
    (folder / "kinds.py").write_text(MODELS, encoding="utf-8")
    for name, text in PACKAGE.items():
        file = folder / "shrinking" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


def save_program(folder: Path) -> None:
    import torch
    from torch.export import Dim

    network = _made("Words")
    length = Dim("length", min=1, max=40)
    shapes = {"ids": {0: Dim("batch", min=1, max=64), 1: length}, "mask": {0: Dim("batch", min=1, max=64), 1: length}}
    example = (torch.ones(2, 8, dtype=torch.int64), torch.ones(2, 8, dtype=torch.bool))
    torch.export.save(torch.export.export(network, example, dynamic_shapes=shapes), folder / "words.pt2")


def save_checkpoint(folder: Path) -> None:
    import torch

    training = {"epoch": 3, "model_state_dict": _made("Cells").state_dict(), "optimizer": {"lr": 0.1}}
    torch.save(training, folder / "checkpoint.pt")


def _made(name: str) -> Any:
    namespace: dict[str, Any] = {"__name__": "kinds"}
    exec(MODELS, namespace)
    return namespace[name]()


_MODEL = """
import torch
from config import WIDTH
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, WIDTH)

    def forward(self, x):
        from archiver.scale import SCALE
        from server import shifted

        return shifted(self.layer(x)) * SCALE
"""
# The handler's own file has such a name, too.
_HANDLER = """
from tests import TESTED

from marina.handlers import Answer, TensorHandler


class Own(TensorHandler):
    def encode(self, outputs, request):
        from docker import SHIPPED
        from k8s import CLUSTER
        from loadtest import LOAD

        answer = super().encode(outputs, request)
        return Answer(answer.body, answer.content_type, headers={"X-Names": f"{TESTED} {SHIPPED} {CLUSTER} {LOAD}"})
"""
# Files that are called like Marina's folders: a model, a handler, and what these import, some of it only when they run.
_NAMESAKES = {
    "archiver/__init__.py": "",
    "archiver/scale.py": "SCALE = 2.0\n",
    "config.py": "WIDTH = 3\n",
    "docker.py": "SHIPPED = 'docker'\n",
    "handlers.py": _HANDLER,
    "k8s.py": "CLUSTER = 'k8s'\n",
    "loadtest.py": "LOAD = 'loadtest'\n",
    "model.py": _MODEL,
    "server.py": "def shifted(values):\n    return values + 1\n",
    "tests.py": "TESTED = 'tests'\n",
}


def write_namesakes(folder: Path) -> None:
    """Writes a model and a handler whose own files and neighbours are called like Marina's folders."""
    for name, text in _NAMESAKES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
