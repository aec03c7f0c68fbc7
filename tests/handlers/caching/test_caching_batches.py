"""Which requests of a batch are computed when there is a cache, and which answers are never stored."""

import json
from pathlib import Path

import numpy as np
import pytest
from fakes import ONE_INPUT, TinyDouble, ask, ask_rows, start, write_package

from marina.handlers.arrays import to_npy
from marina.handlers.tensor import TensorHandler
from marina.handlers.validation import Unprocessable

GOOD, OTHER = b"[[0,1,2],[3,4,5]]", b"[[9,1,2],[3,4,5]]"
SETTINGS = {"mb": 1, "ttl_s": 60, "redis": None, "package": "a" * 64}


class Counting(TensorHandler):
    """Counts the requests that it decodes. Its answers depend on one further header."""

    answer_headers = ("x-unit",)

    def setup(self):
        self.decoded = 0
        self.broken = False

    def decode(self, request):
        self.decoded += 1
        if request.body == b"refuse":
            raise Unprocessable("not this one", field="body", got="it", allowed="another")
        if self.broken:
            raise KeyError("broken")
        return super().decode(request)


@pytest.fixture
def handler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MARINA_ANSWERS", json.dumps(SETTINGS))
    handler = start(Counting(), write_package(tmp_path, TinyDouble, ONE_INPUT))
    handler.decoded = 0
    return handler


def results(handler) -> dict[str, float]:
    return {name: counter._value.get() for name, counter in handler.cache.metrics.requests.items()}


def test_the_same_body_is_computed_once(handler) -> None:
    first, second = ask(handler, GOOD)[0], ask(handler, GOOD)[0]
    assert handler.decoded == 1
    assert (second.status, second.body, second.content_type) == (first.status, first.body, first.content_type)
    assert results(handler) == {"memory": 1, "redis": 0, "batch": 0, "computed": 1, "bypassed": 0}


def test_identical_requests_of_one_batch_are_computed_once_and_each_is_answered(handler) -> None:
    replies = ask(handler, GOOD, OTHER, GOOD, GOOD)
    assert handler.decoded == 2
    assert replies[0].body == replies[2].body == replies[3].body != replies[1].body
    assert results(handler)["batch"] == 2


def test_a_batch_of_known_and_new_ones_is_answered_in_its_order(handler) -> None:
    (known,) = ask(handler, GOOD)
    replies = ask(handler, OTHER, GOOD, b"refuse", OTHER)
    assert [reply.status for reply in replies] == [200, 200, 422, 200]
    assert replies[1].body == known.body
    assert json.loads(replies[0].body) == {"doubled": [[18, 2, 4], [6, 8, 10]]} == json.loads(replies[3].body)


def test_without_a_cache_everything_is_computed(tmp_path: Path) -> None:
    handler = start(Counting(), write_package(tmp_path, TinyDouble, ONE_INPUT))
    handler.decoded = 0
    ask(handler, GOOD, GOOD)
    assert handler.decoded == 2


@pytest.mark.parametrize("body", [b"refuse", b"[[0,1", b""])
def test_a_refusal_is_never_kept(handler, body: bytes) -> None:
    before = handler.cache._memory.bytes
    for _ in range(2):
        (reply,) = ask(handler, body)
        assert 400 <= reply.status < 500
    assert handler.cache._memory.bytes == before


def test_a_failure_is_never_kept(handler) -> None:
    handler.broken = True
    assert ask(handler, GOOD)[0].status == 500
    handler.broken = False
    assert ask(handler, GOOD)[0].status == 200


def test_every_request_with_an_error_is_counted_though_it_was_computed_once(handler) -> None:
    ask(handler, b"refuse", b"refuse", b"refuse")
    assert handler.decoded == 1
    value = handler.metrics.registry.get_sample_value
    assert value("inference_errors_total", {"model": "tiny", "kind": "unprocessable"}) == 3


NPY = to_npy(np.zeros((2, 3), "float32"))
DIFFERENT = [
    pytest.param(GOOD, {}, OTHER, {}, id="another body"),
    pytest.param(NPY, {"accept": "application/json"}, NPY, {"accept": "application/x-npy"}, id="another answer's form"),
    pytest.param(GOOD, {}, GOOD, {"content-type": "application/json"}, id="another type"),
    pytest.param(GOOD, {}, GOOD, {"content-encoding": "gzip"}, id="another encoding"),
    pytest.param(GOOD, {"x-unit": "m"}, GOOD, {"x-unit": "km"}, id="another header of the handler's"),
    pytest.param(GOOD, {"x-unit": ""}, GOOD, {}, id="an empty header and none"),
    pytest.param(
        b'{"instances": [[[0,1,2],[3,4,5]]]}',
        {},
        b'{"instances": [[[0,1,2],[3,4,5]]]}',
        {"x-marina-protocol": "v1"},
        id="another protocol",
    ),
]


@pytest.mark.parametrize(("body", "headers", "other", "others"), DIFFERENT)
def test_what_an_answer_depends_on_is_in_the_key(handler, body, headers, other, others) -> None:
    ask(handler, body, headers=headers)
    ask(handler, other, headers=others)
    assert handler.decoded == 2


def test_what_an_answer_does_not_depend_on_is_not_in_the_key(handler) -> None:
    ask(handler, GOOD, headers={"User-Agent": "a", "Accept": "*/*"})
    ask(handler, GOOD, headers={"user-agent": "b", "accept": "*/*"})
    assert handler.decoded == 1


def test_a_client_that_wants_the_model_is_neither_answered_from_the_cache_nor_kept(handler) -> None:
    for _ in range(2):
        ask(handler, GOOD, GOOD, headers={"Cache-Control": "max-age=0, No-Store"})
    assert handler.decoded == 4
    assert handler.cache._memory.bytes == 0
    assert results(handler)["bypassed"] == 4
    assert results(handler)["computed"] == 0


@pytest.mark.parametrize("words", ["no-cache", "max-age=0"])
def test_a_client_that_wants_a_new_answer_leaves_it_for_others(handler, words) -> None:
    ask(handler, GOOD, headers={"cache-control": words})
    ask(handler, GOOD, headers={"cache-control": words})
    assert handler.decoded == 2
    ask(handler, GOOD)
    assert handler.decoded == 2


def test_fields_of_a_form_are_told_apart(handler) -> None:
    for parts in ({"body": GOOD, "unit": b"m"}, {"body": GOOD, "unit": b"km"}, {"data": GOOD}):
        (reply,) = ask_rows(handler, [parts], [{}])
        assert reply.status == 200
    assert handler.decoded == 3


def test_a_batch_that_is_known_went_through_no_stage(handler) -> None:
    ask(handler, GOOD)
    ask(handler, GOOD)
    value = handler.metrics.registry.get_sample_value
    assert value("inference_stage_duration_seconds_count", {"model": "tiny", "stage": "model"}) == 1
    assert value("inference_batch_size_count", {"model": "tiny"}) == 2
