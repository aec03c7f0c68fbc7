"""Models whose inputs vary in length: what is compiled, how it is compared, and how a worker answers."""

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes import FakeContext, ask
from specs import make_spec
from varying import VARYING, written

from marina.archiver.package import package
from marina.config.errors import SourceError
from marina.config.progress import Progress
from marina.config.record import Package
from marina.handlers.tensor import TensorHandler

# The models are compiled.
pytestmark = pytest.mark.slow


def packaged(folder: Path, changes: Mapping[str, Any]) -> Package:
    spec = make_spec(VARYING | changes, written(folder))
    return package(spec, folder / "build", progress=Progress(quiet=True))


def started(folder: Path) -> TensorHandler:
    with zipfile.ZipFile(folder / "build/model.mar") as archive:
        archive.extractall(folder / "unpacked")
    handler = TensorHandler()
    handler.initialize(FakeContext(folder / "unpacked"))
    return handler


BUCKETS = VARYING["model.inputs"]
DYNAMIC = BUCKETS | {"ids": BUCKETS["ids"] | {"shape": [{"max": 64, "buckets": "dynamic"}]}}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("export", BUCKETS, [1, 4], []), id="export"),
        # Only one batch size where every shape takes long to compile.
        pytest.param(("aot", BUCKETS, [2], [(2, 8), (2, 64)]), id="aot"),
        pytest.param(("export", DYNAMIC, [1, 4], []), id="export dynamic"),
        pytest.param(("eager", DYNAMIC, [1, 4], []), id="eager dynamic"),
        pytest.param(("aot", DYNAMIC, [2], [(2, None)]), id="aot dynamic"),
        pytest.param(("jit", DYNAMIC, [2], []), id="jit dynamic"),
    ],
)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiled, inputs, sizes, shapes = request.param
    place = tmp_path_factory.mktemp(compiled)
    changes = {"model.compile": compiled, "model.inputs": inputs, "model.batch_sizes": sizes}
    record = packaged(place, changes).record
    assert record.agreement.agreement == 1
    assert [port.varies for port in record.outputs] == [None, 0]
    assert [port.name for port in record.inputs] == ["ids"]
    assert [(artifact.batch, artifact.length) for artifact in record.artifacts] == shapes
    return place


@pytest.fixture(scope="module")
def handler(folder: Path) -> TensorHandler:
    return started(folder)


def body(length: int) -> bytes:
    return json.dumps({"ids": [7 * place % 100 for place in range(length)]}).encode()


def expected(folder: Path, length: int) -> list[torch.Tensor]:
    from marina.archiver.sources import load_source

    network = load_source(make_spec(VARYING, folder / "spec.yaml")).network
    ids = torch.tensor([[7 * place % 100 for place in range(length)]])
    with torch.no_grad():
        return [value[0] for value in network(ids, torch.ones_like(ids))]


def test_requests_of_all_lengths_in_one_batch_are_answered_as_without_padding(
    handler: TensorHandler, folder: Path
) -> None:
    lengths = [3, 64, 8, 1, 9, 30, 2]
    for length, reply in zip(lengths, ask(handler, *map(body, lengths)), strict=True):
        answer = json.loads(reply.body)
        scores, words = expected(folder, length)
        assert len(answer["words"]) == length
        np.testing.assert_allclose(answer["scores"], scores, atol=1e-4)
        np.testing.assert_allclose(answer["words"], words, atol=1e-4)


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        pytest.param({"ids": []}, ("the shape is wrong", "a list of 1 to 64 whole numbers"), id="none"),
        pytest.param({"ids": [1] * 65}, ("the shape is wrong", "a list of 1 to 64 whole numbers"), id="too many"),
        pytest.param({"ids": [1], "mask": [1]}, ("the inputs are not those of the model", "ids"), id="a mask"),
    ],
)
def test_a_length_out_of_range_gets_a_422_with_the_range(
    sent: dict[str, Any], error: tuple[str, str], handler: TensorHandler
) -> None:
    bad, good = ask(handler, json.dumps(sent).encode(), body(5))
    assert (bad.status, good.status) == (422, 200)
    said = json.loads(bad.body)
    assert (said["error"], said["allowed"]) == error


@pytest.mark.parametrize(("network", "outputs"), [("unmasked", ["scores", "words"]), ("Year", ["year"])])
def test_a_model_without_a_mask_whose_answers_depend_on_padding_is_refused(
    network: str, outputs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Also if its answers are so large that padding changes them by little.
    inputs = {"ids": VARYING["model.inputs"]["ids"]}
    # Before anything is compiled, which takes minutes for a large model.
    monkeypatch.setattr("marina.archiver.compiling.export_graph", lambda *_: pytest.fail("exported"))
    changes = {"model.source": f"./model.py:{network}", "model.inputs": inputs, "model.outputs": outputs}
    with pytest.raises(SourceError, match="differently if it is padded to the length of longer ones") as raised:
        packaged(tmp_path, changes)
    assert "mask_of: ids" in str(raised.value.hint)


def test_a_program_that_takes_several_sizes_is_not_silently_fixed_to_one(tmp_path: Path) -> None:
    sizes = {0: torch.export.Dim("batch", min=1, max=8), 1: torch.export.Dim("length", min=2, max=64)}
    program = torch.export.export(torch.nn.Softmax(-1), (torch.zeros(2, 10),), dynamic_shapes=(sizes,))
    torch.export.save(program, tmp_path / "program.pt2")
    changes = {"model.source": "./program.pt2", "model.weights": None, "model.inputs": None, "model.outputs": None}
    with pytest.raises(SourceError, match="takes `input` in several sizes") as raised:
        packaged(tmp_path, changes)
    assert raised.value.hint == "inputs: {input: {shape: [{max: 512}], dtype: float32}}"
