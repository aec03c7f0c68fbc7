"""Ways to evade `inspect`, none of which is called sound."""

import subprocess
import sys
from pathlib import Path

import malicious
import malicious_ways
import pytest
from specs import ROOT

from marina.archiver.inspecting.inspect import inspect
from marina.config.errors import ArchiveError

PAYLOAD = b"cos\nsystem\n(S'true'\ntR."


def is_called_sound(mar: Path) -> bool:
    try:
        return inspect(mar).sound
    except ArchiveError:
        return False


@pytest.mark.parametrize("way", malicious_ways.PYTHON)
def test_code_that_evades_the_list_of_names_is_not_sound(way: str, tmp_path: Path) -> None:
    code = malicious_ways.PYTHON[way].encode()
    assert not is_called_sound(malicious.archive(tmp_path / "m.mar", {"handler.py": code}))


@pytest.mark.slow
@pytest.mark.parametrize("way", malicious_ways.files(PAYLOAD))
def test_a_file_that_hides_a_pickle_or_that_another_program_runs_is_not_sound(way: str, tmp_path: Path) -> None:
    members = malicious_ways.files(PAYLOAD)[way]
    assert not is_called_sound(malicious.archive(tmp_path / "m.mar", members))


@pytest.mark.parametrize("kind", ["'|O'", "'O8'", "[('a', '|O')]", "('|O', (2,))"])
def test_an_array_of_objects_is_not_sound_however_its_header_is_written(kind: str, tmp_path: Path) -> None:
    data = malicious_ways.array_of_objects(PAYLOAD, kind)
    assert not is_called_sound(malicious.archive(tmp_path / "m.mar", {"a.npy": data}))


def test_a_pickle_after_a_model_in_torchs_old_format_is_not_sound(tmp_path: Path) -> None:
    assert inspect(malicious.archive(tmp_path / "a.mar", {"model.pt": malicious_ways.legacy(b"")})).sound
    assert not is_called_sound(malicious.archive(tmp_path / "m.mar", {"model.pt": malicious_ways.legacy(PAYLOAD)}))


@pytest.mark.parametrize("way", malicious_ways.LAYOUTS)
def test_a_member_that_two_readers_see_differently_is_not_sound(way: str, tmp_path: Path) -> None:
    mar = malicious.archive(tmp_path / "m.mar", {"a.txt": b"text", "b.txt": b"x" * 100})
    assert inspect(mar).sound
    malicious_ways.LAYOUTS[way](mar)
    assert not is_called_sound(mar)


def test_a_handlers_usual_work_is_sound(tmp_path: Path) -> None:
    code = """
import io, json, logging, torch
from collections import OrderedDict
from io import BytesIO
from PIL import Image
import numpy as np
import torch.nn.functional as F
from torch.nn.modules.utils import _pair
from marina.handlers.base import Handler

class Mine(Handler):
    def load(self, path):
        self._weights = torch.load(path, weights_only=True)
        self._labels = json.loads(path.read_text())
        again = self.load
        torch._assert(again, "text")
        return np.load(path), getattr(self, "_labels"), F.relu(self._weights), _pair(1)

    def draw(self, pixels, name="a"):
        logging.basicConfig(level=logging.INFO, format="%(message)s")
        torch.backends.cudnn.benchmark = True
        picture, buffer = Image.fromarray(pixels), None
        memory = io.BytesIO()
        picture.save(memory, "PNG")
        torch.save({"a": self._weights}, f=memory)
        with BytesIO() as other:
            np.save(other, pixels)
        model = MyNet().eval().to("cpu")
        return memory.getvalue(), model.my_layer(self._weights), name.replace("a", "b"), self.mean

class MyNet(torch.nn.Module):
    __constants__ = ["a"]

    def __init__(self):
        super().__init__()
        self.my_layer = torch.nn.Sequential(OrderedDict([("my_first", torch.nn.Linear(1, 1))]))
        self.register_buffer("my_numbers", torch.zeros(1))

    def forward(self, input):
        match input:
            case str(text):
                return text
            case [first, *rest]:
                return first, rest
        return self.my_layer.my_first(input) + self.my_numbers
"""
    members = {
        "handler.py": code.encode(),
        "chat_template.jinja": b"{% for m in messages %}{{ m.role }}{% endfor %}",
        "config.json": b'{"auto_map": {"AutoModel": "modeling.X"}}',
        "model-config.yaml": b"a: &a [1]\nb: *a\nuseVenv: false\n",
        "numbers.bin": bytes(range(256)) * 64,
        "labels.xml": b"<?xml version='1.0'?><!DOCTYPE a><a><include/>1</a>",
        "tokenizer_config.json": b'{"trust_remote_code": false}',
    }
    report = inspect(malicious.archive(tmp_path / "m.mar", members))
    assert report.sound, report


def test_a_handlers_dataclass_and_decorator_are_sound(tmp_path: Path) -> None:
    code = """
import logging
from dataclasses import dataclass, field
from functools import wraps

import torch

@dataclass(frozen=True)
class Settings(torch.nn.Module):
    'How it answers.'

    top: int = 5
    scale: tuple = (1, -1)
    names: list = field(default_factory=lambda: list("ab"), repr=False)

    @property
    def most(self):
        return self.top

def logged(function):
    @wraps(function)
    def call(*values):
        logging.info("called with %s", values)
        return function(*values)
    return call
"""
    report = inspect(malicious.archive(tmp_path / "m.mar", {"handler.py": code.encode()}))
    assert report.sound, report


def test_a_file_may_import_its_neighbours_but_not_their_imports(tmp_path: Path) -> None:
    members = {
        "handler.py": b"import parts.layers as p\nfrom parts import Block\nimport model\np.halve(Block, model.build)\n",
        "model.py": b"import torch as zz\ndef build():\n    return zz.ones(1)\n",
        "parts/__init__.py": b"from .layers import Block\n",
        "parts/layers.py": b"from torch import nn\nclass Block(nn.Module):\n    pass\ndef halve(*x):\n    return x\n",
    }
    report = inspect(malicious.archive(tmp_path / "m.mar", members))
    assert report.sound, report
    for through in (b"from model import zz\n", b"import model\nmodel.zz.ones(1)\n", b"import model\nx = [model]\n"):
        assert not is_called_sound(malicious.archive(tmp_path / "n.mar", members | {"handler.py": through})), through


def test_an_unknown_name_is_reported_with_its_file_and_line(tmp_path: Path) -> None:
    code = b"import torch\n\ntorch.nn.Linear(1, 1)\ntorch.something_new()\n"
    report = inspect(malicious.archive(tmp_path / "m.mar", {"model.py": code}))
    assert report.code == ("model.py:4: `torch.something_new` is not known to be harmless",)


# In a process of its own, because imports of other tests add attributes to the libraries' classes.
_OF_CLASSES = """
import numpy, torch, PIL.Image
from marina.archiver.inspecting.known import known
PIL.Image.init()
classes = [torch.Tensor, torch.nn.Module, numpy.ndarray, PIL.Image.Image, *PIL.Image.Image.__subclasses__()]
names = {name for kind in classes for name in dir(kind) if not name.startswith("_")}
print(*sorted(names - known().values - known().acting))
print(*sorted(known().values & known().acting))
"""


@pytest.mark.slow
def test_every_attribute_of_a_tensor_an_array_a_module_and_a_picture_is_listed() -> None:
    ran = subprocess.run([sys.executable, "-c", _OF_CLASSES], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == []
