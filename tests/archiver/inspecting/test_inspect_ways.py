"""Ways round what `inspect` looks for: none of them is called sound."""

from pathlib import Path

import malicious
import malicious_ways
import pytest

from archiver.inspecting.inspect import inspect
from config.errors import ArchiveError

PAYLOAD = b"cos\nsystem\n(S'true'\ntR."


def is_called_sound(mar: Path) -> bool:
    try:
        return inspect(mar).sound
    except ArchiveError:
        return False


@pytest.mark.parametrize("way", malicious_ways.PYTHON)
def test_code_that_goes_round_the_list_of_names_is_not_sound(way: str, tmp_path: Path) -> None:
    code = malicious_ways.PYTHON[way].encode()
    assert not is_called_sound(malicious.archive(tmp_path / "m.mar", {"handler.py": code}))


@pytest.mark.parametrize("way", malicious_ways.files(PAYLOAD))
def test_a_file_that_hides_a_pickle_or_that_another_program_runs_is_not_sound(way: str, tmp_path: Path) -> None:
    members = malicious_ways.files(PAYLOAD)[way]
    assert not is_called_sound(malicious.archive(tmp_path / "m.mar", members))


@pytest.mark.parametrize("kind", ["'|O'", "'O8'", "[('a', '|O')]", "('|O', (2,))"])
def test_an_array_of_objects_is_not_sound_however_its_header_says_so(kind: str, tmp_path: Path) -> None:
    data = malicious_ways.array_of_objects(PAYLOAD, kind)
    assert not is_called_sound(malicious.archive(tmp_path / "m.mar", {"a.npy": data}))


def test_a_pickle_behind_a_model_of_old_torch_is_not_sound(tmp_path: Path) -> None:
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
import json, logging, torch
import numpy as np
import torch.nn.functional as F
from torch.nn.modules.utils import _pair
from handlers.base import Handler

class Mine(Handler):
    def load(self, path):
        self._weights = torch.load(path, weights_only=True)
        self._labels = json.loads(path.read_text())
        again = self.load
        torch._assert(again, "text")
        return np.load(path), getattr(self, "_labels"), F.relu(self._weights), _pair(1)
"""
    members = {
        "handler.py": code.encode(),
        "chat_template.jinja": b"{% for m in messages %}{{ m.role }}{% endfor %}",
        "config.json": b'{"auto_map": {"AutoModel": "modeling.X"}}',
        "model-config.yaml": b"a: &a [1]\nb: *a\nuseVenv: false\n",
        "numbers.bin": bytes(range(256)) * 64,
    }
    report = inspect(malicious.archive(tmp_path / "m.mar", members))
    assert report.sound, report
