"""All kinds of models that users bring, each from its file to an answer, with a spec by `marina init`."""

import io
import json
import math
import re
import sys
import zipfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeContext, Reply, ask
from PIL import Image
from strangers import ARGUMENTS, save_checkpoint, save_program, write_files

import marina
from marina.config.load import load_spec
from marina.handlers.protocols import HEADER
from marina.server.pages.schemas import DATATYPES

pytestmark = pytest.mark.slow


def is_classes(reply: Reply) -> bool:
    return set(reply.json()) == {"top_indices", "top_probs"}


def is_png_of_classes(reply: Reply) -> bool:
    picture = Image.open(io.BytesIO(reply.body))
    return (picture.format, picture.size, reply.content_type) == ("PNG", (224, 224), "image/png")


def outputs(*shapes: list[int]) -> Callable[[Reply], bool]:
    import numpy as np

    return lambda reply: [list(np.shape(value)) for value in reply.json().values()] == list(shapes)


# What the spec has under `model`, and a check of the answer to the sample.
KINDS: dict[str, tuple[dict[str, Any], Callable[[Reply], bool]]] = {
    "table": ({"handler": "tensor", "inputs": {"numbers": [5], "kind": []}}, outputs([2])),
    "text with a handler": (
        {"handler": "./handler.py:OwnHandler", "files": ("./words.txt",)},
        lambda reply: set(reply.json()) == {"class", "probability"},
    ),
    "detection": (
        {"handler": "image", "task": "detect", "outputs": ("scores", "boxes")},
        lambda reply: all(len(each["box"]) == 4 for each in reply.json()["objects"]) and reply.json()["objects"],
    ),
    "lengths": ({"handler": "tensor", "inputs": {"ids": [{"max": 128}], "mask": []}}, outputs([3])),
    "mask": ({"handler": "image", "task": "segment"}, is_png_of_classes),
    "program": ({"inputs": {"ids": [{"max": 40}], "mask": []}}, outputs([3])),
    "checkpoint": ({"handler": "image", "weights": "../checkpoint.pt"}, is_classes),
    "encoder": ({"handler": "text", "task": "classify"}, lambda reply: len(reply.json()["top_labels"]) == 5),
    "control flow": ({"compile": "eager", "batch_sizes": (1,)}, outputs([4])),
    "vectors": ({"handler": "image", "task": "embed"}, outputs([10])),
    "names": ({"outputs": ("share", "sums"), "inputs": {"x": [4], "side": [5]}}, outputs([3], [3])),
    "package": ({"compile": "eager", "batch_sizes": (1,)}, outputs([4])),
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path)
    return tmp_path


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_goes_from_its_file_to_an_answer(
    kind: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, (wanted, answers) = ARGUMENTS[kind], KINDS[kind]
    for argument, save in (("words.pt2", save_program), ("checkpoint.pt", save_checkpoint)):
        if argument in arguments:
            save(here)
    assert marina.main(["init", "mine", "--quiet", *arguments]) == 0, capsys.readouterr().err
    model = load_spec(here / "mine/spec.yaml").model.model_dump(exclude_unset=True)
    inputs = {name: [*map(_side, each.get("shape", ()))] for name, each in (model.pop("inputs", None) or {}).items()}
    assert {**model, "inputs": inputs} | wanted == {**model, "inputs": inputs}
    # Not compiled, which saves half a minute each; starts and answers of a worker are the same.
    assert marina.main(["package", "mine/spec.yaml", "--quick", "--quiet"]) == 0, capsys.readouterr().err
    assert re.search(r"agreement 1\.0000", capsys.readouterr().out)
    assert answers(_answer(here, monkeypatch))
    page = here / "build/mine/package.html"
    assert page.is_file() == (wanted.get("handler") == "image")
    if wanted.get("task") == "detect":
        assert page.read_text(encoding="utf-8").count("<rect") > 0


def _side(side: Any) -> Any:
    return {"max": side["max"]} if isinstance(side, dict) else side


def _answer(here: Path, monkeypatch: pytest.MonkeyPatch) -> Reply:
    """The answer to the package's own sample."""
    folder = here / "unpacked"
    with zipfile.ZipFile(here / "build/mine/model.mar") as archive:
        archive.extractall(folder)
    record = json.loads((folder / "marina.json").read_text(encoding="utf-8"))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(
        sys, "modules", {name: each for name, each in sys.modules.items() if name not in ("handler", "marina_entry")}
    )
    handler = import_module("marina_entry").Service()
    handler.initialize(FakeContext(folder))
    sample = record["sample"]
    body = (folder / sample["file"]).read_bytes()
    (reply,) = ask(handler, body, headers={"content-type": sample["content_type"]})
    assert reply.status == 200, reply.body
    if record["encoding"] is None:
        assert _asked_as_v2(handler, record).status == 200
    return reply


def _asked_as_v2(handler: Any, record: Any) -> Reply:
    """The request of the snippet for Triton's client: the model's inputs, with zeros or their smallest values."""
    inputs = [
        {
            "name": port["name"],
            "shape": [1, *port["shape"]],
            "datatype": DATATYPES[port["dtype"]],
            "data": [port["min"] or 0] * math.prod(port["shape"]),
        }
        for port in record["inputs"]
    ]
    (reply,) = ask(handler, json.dumps({"inputs": inputs}).encode(), headers={HEADER: "v2"})
    return reply
