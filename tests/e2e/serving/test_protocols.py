"""A served package, asked as clients of KServe and Triton ask."""

import base64
import json
import subprocess
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from conftest import Start
from running import Running, running
from tritonclient.utils import InferenceServerException
from waiting import DIGIT, eventually, metric

from marina.archiver.package import package
from marina.config.load import parse_spec
from marina.config.progress import Progress

pytestmark = pytest.mark.e2e

MODEL = """
from torch import nn

class Mix(nn.Module):
    def forward(self, left, right):
        return left * right.unsqueeze(-1), left.sum(-1)

def build():
    return Mix()
"""
SPEC = """
name: mix
model:
  source: ./model.py:build
  weights: random
  handler: tensor
  compile: eager
  inputs:
    left: {shape: [2, 3], min: -10, max: 10}
    right: {shape: [2], dtype: int32, min: 0, max: 5}
  outputs: [product, total]
serving: {workers: 1, drain_propagation_s: 0, java_heap_mb: 128}
"""
LEFT = np.arange(6, dtype=np.float32).reshape(2, 3)
RIGHT = np.array([2, 3], np.int32)
PRODUCT = LEFT * RIGHT[:, None]


@pytest.fixture(scope="module")
def mix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder: Path = tmp_path_factory.mktemp("mix")
    (folder / "model.py").write_text(MODEL, encoding="utf-8")
    spec = parse_spec(SPEC, folder / "spec.yaml")
    packaged = package(spec, folder, progress=Progress(quiet=True))
    with running(spec, mar=folder / packaged.mar, log=folder / "server.log") as server:
        yield server


@pytest.fixture
def client(mix: Running) -> Iterator[Any]:
    with triton.InferenceServerClient(f"127.0.0.1:{mix.ports.inference}") as client:
        yield client


def inputs(left: np.ndarray, right: np.ndarray, *, binary: bool) -> list[Any]:
    given = [
        triton.InferInput("left", list(left.shape), "FP32"),
        triton.InferInput("right", list(right.shape), "INT32"),
    ]
    for tensor, array in zip(given, (left, right), strict=True):
        tensor.set_data_from_numpy(array, binary_data=binary)
    return given


def posted(server: Running, path: str, body: bytes, **headers: str) -> tuple[int, Any]:
    connection = HTTPConnection("127.0.0.1", server.ports.inference, timeout=60)
    try:
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


@pytest.mark.parametrize("binary", [True, False], ids=["bytes", "json"])
@pytest.mark.parametrize("version", ["", "1.0"])
def test_tritons_client_gets_the_models_answer(client: Any, binary: bool, version: str) -> None:
    outputs = [triton.InferRequestedOutput(name, binary_data=binary) for name in ("total", "product")]
    answer = client.infer(
        "mix", inputs(LEFT, RIGHT, binary=binary), model_version=version, outputs=outputs, request_id="9"
    )
    np.testing.assert_array_equal(answer.as_numpy("product"), PRODUCT)
    np.testing.assert_array_equal(answer.as_numpy("total"), LEFT.sum(-1))
    assert answer.get_response()["id"] == "9"


def test_tritons_client_sends_several_rows(client: Any) -> None:
    rows = np.stack([LEFT, LEFT + 1, LEFT - 1])
    answer = client.infer("mix", inputs(rows, np.stack([RIGHT] * 3), binary=True))
    np.testing.assert_array_equal(answer.as_numpy("product"), rows * RIGHT[None, :, None])


def test_tritons_client_is_told_of_the_server_and_its_model(client: Any) -> None:
    assert (client.is_server_live(), client.is_server_ready(), client.is_model_ready("mix")) == (True, True, True)
    assert client.is_model_ready("mix", "1.0")
    assert client.get_server_metadata()["extensions"] == ["binary_tensor_data"]
    assert client.get_model_metadata("mix")["inputs"] == [
        {"name": "left", "datatype": "FP32", "shape": [-1, 2, 3]},
        {"name": "right", "datatype": "INT32", "shape": [-1, 2]},
    ]


def test_tritons_client_is_told_what_is_wrong(client: Any) -> None:
    with pytest.raises(
        InferenceServerException, match=r"a number is out of range in `left`: got 20\.0, allowed: -10 to"
    ):
        client.infer("mix", inputs(LEFT + 15, RIGHT, binary=True))
    with pytest.raises(InferenceServerException, match="no such model"):
        client.infer("max", inputs(LEFT, RIGHT, binary=True))


def test_instances_of_kserve_are_answered_by_predictions(mix: Running) -> None:
    body = json.dumps({"instances": [{"left": LEFT.tolist(), "right": [2, 3]}] * 2})
    expected = {"product": PRODUCT.tolist(), "total": LEFT.sum(-1).tolist()}
    assert posted(mix, "/v1/models/mix:predict", body.encode()) == (200, {"predictions": [expected] * 2})
    # As KServe's own pages type it.
    command = ["curl", "-s", f"{mix.url}/v1/models/mix:predict", "-d", body]
    assert json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["predictions"] == [expected] * 2


def test_pictures_are_asked_about_in_every_protocol(digits_server: Running) -> None:
    text = base64.b64encode(DIGIT).decode()
    status, alone = posted(digits_server, "/predictions/digits", DIGIT, **{"Content-Type": "image/png"})
    assert status == 200
    v1 = posted(digits_server, "/v1/models/digits:predict", json.dumps({"instances": [{"b64": text}]}).encode())
    assert v1 == (200, {"predictions": [alone]})
    enveloped = json.dumps({"body": text}).encode()
    assert posted(digits_server, "/predictions/digits", enveloped, **{"Content-Type": "application/json"})[1] == alone
    with triton.InferenceServerClient(f"127.0.0.1:{digits_server.ports.inference}") as client:
        picture = triton.InferInput("image", [1], "BYTES")
        picture.set_data_from_numpy(np.array([DIGIT], dtype=np.object_))
        answer = client.infer("digits", [picture])
        assert answer.as_numpy("top_labels").tolist() == [[label.encode() for label in alone["top_labels"]]]


def test_the_doors_own_pages_keep_the_connection_and_are_no_inferences(mix: Running) -> None:
    before = metric(mix, "inference_batch_size_count")
    connection = HTTPConnection("127.0.0.1", mix.ports.inference, timeout=60)
    for path in ("/", "/v2", "/v2/models/mix", "/v1/models/mix", "/v1/models") * 2:
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        assert (answer.status, answer.getheader("Connection")) == (200, None)
    connection.close()
    eventually(lambda: metric(mix, "marina_in_flight") == 0)
    assert metric(mix, "inference_batch_size_count") == before


def test_the_start_page_names_the_port_of_the_other_pages(mix: Running) -> None:
    connection = HTTPConnection("127.0.0.1", mix.ports.inference, timeout=60)
    connection.request("GET", "/", headers={"Host": '"><script>'})
    page = connection.getresponse().read().decode()
    assert f"On port {mix.ports.supervisor}: <code>/ready</code>" in page
    assert "<script>" not in page


def test_readiness_in_the_protocols_is_the_supervisors(start_tiny: Start) -> None:
    server = start_tiny(wait=False, environment={"TINY_LOAD_S": "2"})

    def says(path: str) -> int:
        connection = HTTPConnection("127.0.0.1", server.ports.inference, timeout=60)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except OSError:
            return 0
        finally:
            connection.close()

    assert eventually(lambda: says("/v2/health/live")) == 200
    paths = ("/v2/health/ready", "/v2/models/tiny/ready", "/v1/models/tiny")
    assert [says(path) for path in paths] == [503] * 3
    eventually(lambda: says("/v2/health/ready") == 200)
    assert server.readiness()[0]
    assert [says(path) for path in paths] == [200] * 3
