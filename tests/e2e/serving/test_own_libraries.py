"""A handler of several modules with libraries of its own, as users type it: packaged, served, moved, refused."""

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import yaml
from running import running
from wheels import make_wheel

from marina.config.load import load_spec

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

HANDLER = """
import json
import promql_parser                       # another one is installed here, and no pod has that
from marina.handlers import TensorHandler
from marina.handlers.request import Answer
from .pre import words

class Own(TensorHandler):
    def encode(self, outputs, request):
        return Answer(json.dumps([promql_parser.__file__, *words()]).encode())
"""
PRE = """
from importlib import resources

def words():
    return (resources.files("shells") / "names.txt").read_text().split()
"""
MODEL = "from torch import nn\n\ndef build():\n    return nn.Linear(2, 2)\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    make_wheel(folder / "wheels", "promql_parser", requires=["shells", "numpy"])
    make_wheel(folder / "wheels", "shells", files={"shells/__init__.py": "", "shells/names.txt": "conch whelk"})
    (folder / "requirements.txt").write_text("--no-index\n--find-links wheels\npromql_parser\n", encoding="utf-8")
    (folder / "serving").mkdir()
    (folder / "serving/handler.py").write_text(HANDLER, encoding="utf-8")
    (folder / "serving/pre.py").write_text(PRE, encoding="utf-8")
    (folder / "serving/__init__.py").write_text("", encoding="utf-8")
    (folder / "model.py").write_text(MODEL, encoding="utf-8")
    model = {"source": "./model.py:build", "weights": "random", "handler": "./serving/handler.py:Own"}
    model |= {"requirements": "./requirements.txt", "inputs": {"x": {"shape": [2]}}, "compile": "export"}
    serving = {"workers": 1, "threads": 1, "java_heap_mb": 128}
    spec = {"name": "own", "model": model, "serving": serving, "slo": {"p99_ms": 500}}
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec), encoding="utf-8")
    return folder


def marina(folder: Path, *words: str, cache: Path, code: int = 0) -> str:
    environment = {**os.environ, "MARINA_CACHE": str(cache), "PIP_CONFIG_FILE": "/dev/null"}
    command = [sys.executable, "-m", "marina", *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done.stderr


def test_a_handler_finds_its_libraries_where_it_is_served(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marina(folder, "package", cache=folder / "cache")
    # As on another machine, to which only the build folder was brought.
    monkeypatch.setenv("MARINA_CACHE", str(folder / "empty"))
    mar = folder / "build/own/model.mar"
    with running(load_spec(folder / "spec.yaml"), mar=mar, log=folder / "server.log") as server:
        request = urllib.request.Request(f"{server.url}/predictions/own", b'{"x": [1, 2]}')
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request) as answer:
            place, *words = json.load(answer)
    assert Path(place).is_relative_to(folder / "empty/requirements/installed")
    assert words == ["conch", "whelk"]
    shutil.move(folder / "build/own/wheels", folder / "elsewhere")
    said = marina(folder, "serve", cache=folder / "empty2", code=2)
    assert "wheels/promql_parser-1.0-py3-none-any.whl: no such wheel; the handler needs `promql_parser` 1.0" in said
