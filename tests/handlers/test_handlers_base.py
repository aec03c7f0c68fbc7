import json
import subprocess
import sys
from pathlib import Path
from unittest import TestCase

import numpy as np
import orjson
import pytest
import torch
from fakes import (
    IMAGE,
    ONE_INPUT,
    TWO_INPUTS,
    FakeContext,
    TinyClassifier,
    TinyDouble,
    TinySum,
    ask,
    start,
    write_package,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from marina.handlers.artifact import LoadedArtifact
from marina.handlers.base import Handler
from marina.handlers.image import ImageHandler
from marina.handlers.record import RecordError
from marina.handlers.request import Answer
from marina.handlers.tensor import TensorHandler
from marina.handlers.validation import Unprocessable

GOOD = b"[[0,1,2],[3,4,5]]"


class Custom(TensorHandler):
    """Misbehaves as the body says, in ways in which a user's handler may go wrong."""

    def setup(self):
        self.was_set_up = True

    def decode(self, request):
        if request.body == b"crash":
            raise KeyError("/secret/path")
        if request.body == b"exit":
            sys.exit(3)
        if request.body == b"memory":
            raise MemoryError
        if request.body == b"panic":
            raise BaseException("as libraries in Rust do")
        if request.body == b"short":
            return [np.zeros((1, 3), np.float32)]
        if request.body == b"double":
            return [np.zeros((2, 3), np.complex64)]
        if request.body == b"none":
            return []
        if request.body == b"beyond":
            return [np.full((2, 3), 101.0)]
        if request.body == b"refuse":
            raise Unprocessable("not this one", field="x" * 10, got="y" * 1000, allowed={1, 2})
        if request.body.startswith(b"repeat "):
            word = request.body[7:].decode("utf-8", "surrogateescape")
            raise Unprocessable(f"unknown word {word}", field=word, allowed=[word])
        if request.body.startswith(b"["):
            return super().decode(request)
        return [np.zeros((2, 3), np.float32)]

    def encode(self, outputs, request):
        match bytes(request.body):
            case b"large":
                return Answer(b"x" * (self.record.max_response_bytes + 1))
            case b"header":
                return Answer(b"", "text/plain\r\nset-cookie: a")
            case b"further header":
                return Answer(b"", headers={"x-words": "a\r\nset-cookie: a"})
            case b"name of a header":
                return Answer(b"", headers={"x words": "a"})
            case b"surrogate":
                return Answer(b"", headers={"x-words": "\ud800"})
            case b"number":
                return Answer(b"", headers={"x-words": 1})
            case b"text":
                return Answer("text")
            case b"nothing":
                return None
            case b"nan":
                outputs[0] = outputs[0] + np.nan
        return super().encode(outputs, request)


@pytest.fixture(scope="module")
def custom(tmp_path_factory):
    record = {**ONE_INPUT, "max_response_bytes": 1000}
    return start(Custom(), write_package(tmp_path_factory.mktemp("custom"), TinyDouble, record))


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        pytest.param(b"crash", 500, "internal error", id="decode raises"),
        pytest.param(b"exit", 500, "internal error", id="decode exits"),
        pytest.param(b"memory", 507, "out of memory", id="decode has no memory"),
        pytest.param(b"panic", 500, "internal error", id="decode raises no Exception"),
        pytest.param(b"short", 500, "internal error", id="decode gives another shape"),
        pytest.param(b"double", 500, "internal error", id="decode gives another type"),
        pytest.param(b"none", 500, "internal error", id="decode gives nothing"),
        pytest.param(b"large", 500, "answer_too_large: the answer is over the server's limit", id="large answer"),
        pytest.param(b"header", 500, "internal error", id="illegal header"),
        pytest.param(b"further header", 500, "internal error", id="two headers in one"),
        pytest.param(b"name of a header", 500, "internal error", id="illegal name of a header"),
        pytest.param(b"surrogate", 500, "internal error", id="header that cannot be sent"),
        pytest.param(b"number", 500, "internal error", id="header of a number"),
        pytest.param(b"text", 500, "internal error", id="answer of text"),
        pytest.param(b"nothing", 500, "internal error", id="no answer"),
        pytest.param(b"nan", 500, "non_finite_output: the model returned a number that is not finite", id="NaN"),
    ],
)
def test_failure_of_the_server_is_answered_alone_and_tells_nothing(custom, body, status, error):
    expected = ask(custom, GOOD, GOOD)[0].body
    before, reply, after = ask(custom, GOOD, body, GOOD)
    assert (before.body, after.body) == (expected, expected)
    assert reply.status == status
    assert reply.json() == {"error": error, "request_id": "request-1"}


def test_trace_of_a_failure_is_in_the_log(custom):
    with TestCase().assertLogs("marina.handlers", "ERROR") as log:
        ask(custom, b"crash")
    assert "request-0" in log.output[0]
    assert "/secret/path" in log.output[0]


def test_errors_of_users_are_shortened(custom):
    (reply,) = ask(custom, b"refuse")
    assert reply.status == 422
    assert reply.phrase in ("Unprocessable Entity", "Unprocessable Content")
    assert len(reply.json()["got"]) < 200


def test_what_a_users_handler_reads_beyond_the_limits_of_an_input_is_refused_alone(custom):
    before, reply, after = ask(custom, GOOD, b"beyond", GOOD)
    assert [before.status, reply.status, after.status] == [200, 422, 200]
    assert reply.json() == {
        "error": "a number is out of range",
        "field": "values",
        "got": 101.0,
        "allowed": "-100 to 100",
    }


@pytest.mark.parametrize("word", [b"\xff", b"x" * 100_000], ids=["not UTF-8", "long"])
def test_a_users_error_that_repeats_what_was_sent_hurts_nobody(custom, word):
    before, reply, after = ask(custom, GOOD, b"repeat " + word, GOOD)
    assert [before.status, reply.status, after.status] == [200, 422, 200]
    assert reply.json()["error"].startswith("unknown word ")
    assert len(reply.body) < 5000


@pytest.mark.parametrize("status", ["x", 200, 599, None])
def test_a_users_error_has_a_status_of_a_request_error(status):
    with pytest.raises(TypeError, match=f"`Odd.status`: got {status!r}, allowed: 400 to 499"):
        type("Odd", (Unprocessable,), {"status": status})
    type("Teapot", (Unprocessable,), {"status": 418})


def test_setup_runs_before_the_worker_is_ready(custom):
    assert custom.was_set_up


@pytest.mark.parametrize("data", [None, []])
def test_empty_batch_has_an_empty_answer(custom, data):
    assert custom.handle(data, FakeContext(custom.directory)) == []


class Breaking(TensorHandler):
    """A model that works only until the worker is ready."""

    broken = False

    def load(self):
        return LoadedArtifact("export", (1, 4), self.device, self.run)

    def run(self, inputs):
        if self.broken:
            raise RuntimeError("failed in /secret/path")
        return [inputs[0] * 2]


def test_failure_of_the_model_is_answered_with_the_name_of_the_request(tmp_path):
    handler = start(Breaking(), write_package(tmp_path, TinyDouble, ONE_INPUT))
    handler.broken = True
    replies = ask(handler, b"[]", GOOD)
    assert [reply.status for reply in replies] == [422, 500]
    assert replies[1].json() == {"error": "internal error", "request_id": "request-1"}


class TinyLookup(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(10, 2)

    def forward(self, values: torch.Tensor) -> tuple[torch.Tensor]:
        return (self.embedding(values),)


def test_a_row_at_which_the_model_fails_leaves_the_others_their_answers(tmp_path):
    record = {
        "inputs": [{"name": "values", "shape": [2], "dtype": "int64"}],
        "outputs": [{"name": "vectors", "shape": [2, 2], "dtype": "float32"}],
    }
    handler = start(TensorHandler(), write_package(tmp_path, TinyLookup, record))
    before, failed, after = ask(handler, b"[1,2]", b"[1,1000]", b"[3,4]")
    assert [before.status, failed.status, after.status] == [200, 500, 200]
    assert [before.json(), after.json()] == [reply.json() for reply in ask(handler, b"[1,2]", b"[3,4]")]


def test_sample_that_is_not_answered_stops_the_worker(tmp_path):
    (tmp_path / "sample.json").write_text("[1]")
    sample = {"sample": {"file": "sample.json", "content_type": "application/json"}}
    with pytest.raises(RecordError, match=r"`sample`: `sample.json` was answered with 422: .*the shape is wrong"):
        start(TensorHandler(), write_package(tmp_path, TinyDouble, ONE_INPUT, sample))
    (tmp_path / "sample.json").write_text("text")
    why = r"500: TypeError: encode\(\) returned a body of str, not bytes"
    with pytest.raises(RecordError, match=why):
        start(Custom(), tmp_path)


def test_base_handler_asks_for_its_hooks(tmp_path):
    handler = start(Handler(), write_package(tmp_path, TinyDouble, ONE_INPUT))
    assert ask(handler, GOOD)[0].status == 500


@pytest.fixture(scope="module")
def handlers(tmp_path_factory):
    image = write_package(tmp_path_factory.mktemp("image"), TinyClassifier, IMAGE)
    add = write_package(tmp_path_factory.mktemp("add"), TinySum, TWO_INPUTS)
    zeros = orjson.dumps({"left": [[1.0] * 3] * 2, "right": [[1.0] * 3] * 2})
    flat = orjson.dumps({"image": [0.0] * 32 * 32 * 3})
    return [(start(ImageHandler(), image), flat), (start(TensorHandler(), add), zeros)]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["image", "left", "right", "inputs"]), inner)
    ),
    max_leaves=12,
)
STARTS = [
    b"\xff\xd8\xff\xe0",
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
    b"RIFF\0\0\0\0WEBPVP8X",
    b"\x93NUMPY\x01\0",
    b'{"image":"',
]
BODIES = st.one_of(
    st.binary(max_size=300),
    st.builds(bytes.__add__, st.sampled_from(STARTS), st.binary(max_size=300)),
    JSON,
    JSON.map(lambda value: json.dumps(value).encode()),
    st.text(max_size=50),
)
HEADERS = st.dictionaries(
    st.sampled_from(["Content-Type", "accept", "body"]), st.sampled_from(["image/png", "text/x", "application/x-npy"])
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(bodies=st.lists(BODIES, min_size=1, max_size=4), headers=HEADERS, place=st.integers(0, 4))
def test_random_bodies_never_hurt_the_server_or_their_neighbours(handlers, bodies, headers, place):
    for handler, good in handlers:
        batch = [*bodies[:place], good, *bodies[place:]]
        index = min(place, len(bodies))
        replies = ask(handler, *batch, headers=headers if "Content-Type" not in headers else {})
        expected = ask(handler, *[good] * len(batch))
        assert all(reply.status < 500 for reply in replies)
        if "accept" not in headers:
            assert replies[index].body == expected[index].body


@pytest.mark.slow
def test_package_imports_nothing_heavy_and_nothing_of_the_kit():
    code = (
        "import sys; before = set(sys.modules);"
        "import marina.handlers; assert 'torch' not in sys.modules;"
        "import marina.handlers.image, marina.handlers.tensor;"
        "heavy = ('torch._inductor', 'torch._dynamo', 'torchvision', 'pydantic', 'yaml');"
        "heavy += ('marina.config', 'marina.archiver');"
        "print([name for name in heavy if name in set(sys.modules) - before])"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "name", ["Handler", "ImageHandler", "TensorHandler", "Request", "Answer", "RequestError", "TooLarge"]
)
def test_public_names_come_from_the_package(name):
    from marina import handlers as package

    assert getattr(package, name).__name__ == name


def test_unknown_name_of_the_package_is_an_error():
    from marina import handlers as package

    with pytest.raises(AttributeError, match="module `handlers` has no attribute `Hander`"):
        _ = package.Hander
