"""Bodies as clients of KServe, Triton and TorchServe send them, to handlers that know nothing about these protocols."""

import base64
import json
from typing import Any

import numpy as np
import orjson
import pytest
from fakes import IMAGE, ONE_INPUT, SIDE, TWO_INPUTS, TinyClassifier, TinyDouble, TinySum, ask, start, write_package
from pictures import encoded
from PIL import Image

from marina.handlers.image import ImageHandler
from marina.handlers.protocols import HEADER
from marina.handlers.protocols.v2 import read_exchange
from marina.handlers.request import Answer, Request
from marina.handlers.tensor import TensorHandler
from marina.handlers.validation import Overdue, TooLarge

ROW = np.arange(6, dtype=np.float32).reshape(2, 3)
PICTURE = encoded(Image.effect_noise((50, 40), 60).convert("RGB"), "PNG")
V1, V2 = {HEADER: "v1"}, {HEADER: "v2"}


class Loud(TensorHandler):
    """A handler of your own, whose bodies are text; it fills the same array for each."""

    def setup(self):
        self.filled = np.zeros((2, 3), np.float32)

    def decode(self, request):
        words = request.json() if request.is_decoded else request.body
        self.filled[:] = len(words) if isinstance(words, str | bytes) else 7
        return [self.filled]

    def encode(self, outputs, request):
        return Answer(f"{outputs[0][0, 0]:g}!".encode(), "text/plain")


@pytest.fixture(scope="module")
def double(tmp_path_factory):
    return start(TensorHandler(), write_package(tmp_path_factory.mktemp("double"), TinyDouble, ONE_INPUT))


@pytest.fixture(scope="module")
def add(tmp_path_factory):
    return start(TensorHandler(), write_package(tmp_path_factory.mktemp("add"), TinySum, TWO_INPUTS))


@pytest.fixture(scope="module")
def loud(tmp_path_factory):
    return start(Loud(), write_package(tmp_path_factory.mktemp("loud"), TinyDouble, ONE_INPUT))


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    folder = write_package(tmp_path_factory.mktemp("image"), TinyClassifier, IMAGE, {"labels": "labels.txt"})
    (folder / "labels.txt").write_text("".join(f"class {number}\n" for number in range(7)))
    return start(ImageHandler(), folder)


def asked(handler: Any, body: object, **headers: str) -> Any:
    (reply,) = ask(handler, body if isinstance(body, bytes) else orjson.dumps(body), headers=headers)
    return reply


def tensor(name: str, array: np.ndarray, datatype: str = "FP32", **more: Any) -> dict[str, Any]:
    return {"name": name, "shape": list(array.shape), "datatype": datatype, "data": array.ravel().tolist(), **more}


@pytest.mark.parametrize("headers", [{}, V1], ids=["by its body", "by its path"])
def test_instances_are_answered_by_predictions_in_their_order(double, headers):
    reply = asked(double, {"instances": [ROW.tolist(), {"values": (ROW + 1).tolist()}, ROW.tolist()]}, **headers)
    doubled = [{"doubled": (rows * 2).tolist()} for rows in (ROW, ROW + 1, ROW)]
    assert (reply.status, reply.json()) == (200, {"predictions": doubled})


@pytest.mark.parametrize("wrapper", ["b64", "body", "data", "image_bytes"])
def test_pictures_in_base64_are_instances(classifier, wrapper):
    text = base64.b64encode(PICTURE).decode()
    alone = asked(classifier, PICTURE).json()
    # A batch of two is computed differently, so the last digit of a sum may differ.
    alone["top_probs"] = pytest.approx(alone["top_probs"], rel=1e-5)
    assert asked(classifier, {"instances": [{wrapper: text}, {"image": text}]}).json() == {"predictions": [alone] * 2}


@pytest.mark.parametrize("wrapped", [lambda text: {"body": text}, lambda text: {"body": {"b64": text}}])
def test_torchserves_own_envelope_is_opened(classifier, wrapped):
    text = base64.b64encode(PICTURE).decode()
    assert asked(classifier, wrapped(text)).json() == asked(classifier, PICTURE).json()


def test_an_envelope_of_json_is_opened(double):
    assert asked(double, {"body": {"values": ROW.tolist()}}).json() == {"doubled": (ROW * 2).tolist()}


def test_instances_go_to_an_own_handler_only_on_their_path(loud):
    body = {"instances": ["hello", {"b64": base64.b64encode(b"four").decode()}]}
    texts = [base64.b64decode(prediction["b64"]) for prediction in asked(loud, body, **V1).json()["predictions"]]
    assert texts == [b"10!", b"8!"]
    assert asked(loud, body).body == f"{2 * len(orjson.dumps(body))}!".encode()
    assert [reply.body for reply in ask(loud, b"two", b"bodies")] == [b"6!", b"12!"]


def test_an_instance_that_an_own_handler_puts_beyond_a_limit_is_named(loud):
    reply = asked(loud, {"instances": ["short", "long" * 50]}, **V1)
    sentence = "a number is out of range in `instances[1].values`: got 200.0, allowed: -100 to 100"
    assert (reply.status, reply.json()) == (422, {"error": sentence})


def test_json_of_a_declared_charset_is_a_prediction_of_json(loud, monkeypatch):
    monkeypatch.setattr(loud, "encode", lambda *_: Answer(b"[1]", "application/json; charset=utf-8"))
    assert asked(loud, {"instances": ["a"]}, **V1).json() == {"predictions": [[1]]}


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"instances": []}, 422, "instances are needed in `instances`"),
        ({"rows": 1}, 422, "got no `instances`"),
        ({"instances": [ROW.tolist(), [1]]}, 422, "in `instances[1].values`: got a list of 1"),
        ({"instances": [ROW.tolist()] * 65}, 413, "got 65, allowed: at most 64"),
        ({"instances": [{"b64": "?"}]}, 400, "not valid base64 in `instances[0].b64`"),
        (b"{", 400, "the body is not valid JSON in `body`"),
    ],
)
def test_what_is_wrong_with_instances_is_said_in_one_sentence(double, body, status, says):
    reply = asked(double, body, **V1)
    assert (reply.status, list(reply.json())) == (status, ["error"])
    assert says in reply.json()["error"]


@pytest.mark.parametrize("headers", [{}, V2], ids=["by its body", "by its path"])
def test_named_tensors_are_answered_by_named_tensors(add, headers):
    body = {"id": "7", "inputs": [tensor("right", ROW + 1), tensor("left", ROW) | {"data": ROW.tolist()}]}
    reply = asked(add, body, **headers)
    total, ratio = reply.json().pop("outputs")
    about = {name: value for name, value in reply.json().items() if name != "outputs"}
    assert about == {"model_name": "tiny", "model_version": "1.0", "id": "7"}
    assert total == tensor("sum", 2 * ROW + 1)
    assert (ratio["shape"], ratio["data"]) == ([], [pytest.approx(15 / 21)])


def test_a_dimension_of_rows_before_the_models_own_comes_back(double):
    rows = np.stack([ROW, ROW + 1, ROW + 2])
    (output,) = asked(double, {"inputs": [tensor("values", rows)]}).json()["outputs"]
    assert output == tensor("doubled", rows * 2)


def test_bytes_after_the_json_are_tensors_and_so_is_the_answer(double):
    rows = np.stack([ROW, ROW + 1])
    described = {"name": "values", "shape": [2, 2, 3], "datatype": "FP32", "parameters": {"binary_data_size": 48}}
    head = orjson.dumps({"inputs": [described], "parameters": {"binary_data_output": True}})
    reply = asked(double, head + rows.tobytes(), **{"Inference-Header-Content-Length": str(len(head))})
    assert reply.status == 200
    length = int(reply.header("Inference-Header-Content-Length"))
    (output,) = orjson.loads(reply.body[:length])["outputs"]
    assert output["parameters"] == {"binary_data_size": 48}
    np.testing.assert_array_equal(np.frombuffer(reply.body[length:], "<f4").reshape(2, 2, 3), rows * 2)


def test_only_the_outputs_that_are_named_come_back(add):
    inputs = [tensor("left", ROW), tensor("right", ROW + 1)]
    assert [
        output["name"] for output in asked(add, {"inputs": inputs, "outputs": [{"name": "ratio"}]}).json()["outputs"]
    ] == ["ratio"]
    reply = asked(add, {"inputs": inputs, "outputs": [{"name": "total"}]})
    assert (reply.status, reply.json()["error"]) == (
        422,
        "the model has no such output in `outputs`: allowed: sum, ratio",
    )


def test_pictures_are_tensors_of_bytes_or_of_pixels(classifier):
    alone = asked(classifier, PICTURE).json()
    text = base64.b64encode(PICTURE).decode()
    of_bytes = {"name": "image", "shape": [2], "datatype": "BYTES", "data": [text, text]}
    named = {output["name"]: output for output in asked(classifier, {"inputs": [of_bytes]}).json()["outputs"]}
    assert named["top_indices"]["data"] == alone["top_indices"] * 2
    assert named["top_labels"] == {
        "name": "top_labels",
        "datatype": "BYTES",
        "shape": [2, 3],
        "data": alone["top_labels"] * 2,
    }
    pixels = np.full((SIDE, SIDE, 3), 9, np.uint8)
    unbatched, batched = (
        asked(classifier, {"inputs": [tensor("image", array, "UINT8")]}).json()["outputs"][0]
        for array in (pixels, np.stack([pixels, pixels]))
    )
    assert (unbatched["shape"], batched["shape"]) == ([3], [2, 3])
    assert batched["data"] == unbatched["data"] * 2


def test_tensors_go_past_the_bodies_of_an_own_handler(loud):
    (output,) = asked(loud, {"inputs": [tensor("values", ROW)]}, **V2).json()["outputs"]
    assert output["data"] == (ROW * 2).ravel().tolist()


BROKEN = [
    ({"inputs": []}, "named tensors are needed in `inputs`"),
    (
        {"inputs": [tensor("value", ROW)]},
        "the inputs are not those of the model in `inputs`: got 1 tensor, no `values`, 1 too many",
    ),
    ({"inputs": [tensor("values", ROW, "FP8")]}, "the datatype is unknown"),
    ({"inputs": [tensor("values", ROW) | {"datatype": {}}]}, "the datatype is unknown"),
    ({"inputs": [tensor("values", ROW)], "parameters": "x"}, "parameters must be an object"),
    (
        {"inputs": [tensor("values", ROW)], "parameters": {"binary_data_output": "false"}},
        "the parameter is not a boolean in `binary_data_output`",
    ),
    (
        {"inputs": [tensor("values", ROW)], "outputs": [{"name": "out", "parameters": {"binary_data": 0}}]},
        "the parameter is not a boolean in `binary_data`",
    ),
    (
        {"inputs": [{"name": "values", "shape": [2, 3], "datatype": "FP32", "parameters": [1]}]},
        "parameters must be an object in",
    ),
    (
        {"inputs": [tensor("values", ROW)], "outputs": [{"name": "out", "parameters": 1}]},
        "parameters must be an object in `par",
    ),
    ({"inputs": [tensor("values", ROW, "BYTES", data=["a"] * 6)]}, "the type is wrong in `values`: got BYTES"),
    ({"inputs": [tensor("values", ROW, data=[1.0])]}, "the shape is wrong in `values`: got a list of 1"),
    ({"inputs": [tensor("values", ROW, shape=[2, -3])]}, "the shape is wrong in `shape`"),
    ({"inputs": [tensor("values", ROW + 100)]}, "a number is out of range in `values`"),
    ({"inputs": [tensor("values", ROW, data=[True] * 6)]}, "a value is of the wrong type"),
    ({"inputs": [tensor("values", np.zeros((65, 2, 3)))]}, "too many in one request"),
    ({"inputs": [tensor("values", ROW)] * 2}, "got 2 tensors, 1 too many, allowed: values"),
    # No more is read of what the model does not take.
    ({"inputs": [tensor("n" * 5000, ROW, data=[])]}, "got 1 tensor, no `values`, 1 too many"),
    ({"inputs": [tensor("values", ROW), tensor("other", ROW, "X")]}, "got 2 tensors, 1 too many, allowed: values"),
    ({"inputs": [tensor([], ROW)]}, "got 1 tensor, no `values`, 1 too many"),
    ({"inputs": [tensor("values", ROW, "UINT64", data=[2**64 - 1] * 6)]}, "got 1.8446744073709552e+19, allowed: -100"),
]


@pytest.mark.parametrize(("body", "says"), BROKEN, ids=[says for _, says in BROKEN])
def test_tensors_that_do_not_fit_are_refused_alone(double, body, says):
    good = orjson.dumps({"values": ROW.tolist()})
    before, reply, after = ask(double, good, orjson.dumps(body), good, headers=V2 if body["inputs"] == [] else {})
    assert (reply.status in (413, 422), list(reply.json())) == (True, ["error"])
    assert says in reply.json()["error"]
    assert before.json() == after.json()


@pytest.mark.parametrize("length", ["x", "-1", "99999", "4", "9" * 5000])
def test_a_wrong_length_of_the_json_is_malformed(double, length):
    reply = asked(double, {"inputs": [tensor("values", ROW)]}, **{"inference-header-content-length": length})
    assert reply.status in (400, 422)


@pytest.mark.parametrize("size", [0, 23, 25, 1 << 40, 24.0, "24"])
def test_binary_data_of_another_size_is_malformed(double, size):
    described = {"name": "values", "shape": [2, 3], "datatype": "FP32", "parameters": {"binary_data_size": size}}
    head = json.dumps({"inputs": [described]}).encode()
    reply = asked(double, head + ROW.tobytes(), **{"inference-header-content-length": str(len(head))})
    assert reply.status == 400


@pytest.mark.parametrize(("count", "error"), [(2, Overdue), (65, TooLarge)])
def test_elements_of_bytes_are_read_only_while_there_is_time_and_only_if_each_can_be_a_row(double, count, error):
    size = {"binary_data_size": 4 * count}
    described = {"name": "values", "shape": [count], "datatype": "BYTES", "parameters": size}
    head = json.dumps({"inputs": [described]}).encode()
    headers = {"inference-header-content-length": str(len(head))}
    request = Request({"body": head + bytes(4 * count)}, headers, request_id="-", max_bytes=1000, max_values=1000)
    with pytest.raises(error):
        read_exchange(double, request, until=0.0)


def test_a_models_own_input_of_a_protocols_name_stays_its_own(tmp_path):
    spec = {**ONE_INPUT["inputs"][0], "name": "instances"}
    handler = start(TensorHandler(), write_package(tmp_path, TinyDouble, ONE_INPUT, {"inputs": [spec]}))
    assert asked(handler, {"instances": ROW.tolist()}).json() == {"doubled": (ROW * 2).tolist()}


def test_a_request_of_many_rows_leaves_the_others_of_its_batch_theirs(double):
    many = orjson.dumps({"instances": [(ROW + number).tolist() for number in range(5)]})
    single = orjson.dumps({"values": ROW.tolist()})
    first, several, last = ask(double, single, many, single)
    assert first.json() == last.json() == {"doubled": (ROW * 2).tolist()}
    assert [item["doubled"][0][0] for item in several.json()["predictions"]] == [0, 2, 4, 6, 8]
