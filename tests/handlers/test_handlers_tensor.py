import gzip
import io

import numpy as np
import pytest
import torch
from fakes import ONE_INPUT, TWO_INPUTS, TinyDouble, TinySum, ask, ask_rows, start, write_package

from marina.handlers.arrays import fit_array, from_json
from marina.handlers.record import TensorSpec
from marina.handlers.tensor import TensorHandler
from marina.handlers.validation import Unprocessable

GOOD = np.arange(6, dtype=np.float32).reshape(2, 3)
NPY = {"accept": "application/x-npy"}


class TinyPair(torch.nn.Module):
    def forward(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return values + 1, values * 2


class TinyChoice(torch.nn.Module):
    def forward(self, values: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.where(values, 1.0, 0.0),)


def npy(array, **options):
    buffer = io.BytesIO()
    np.save(buffer, array, **options)
    return buffer.getvalue()


def raw_npy(header: bytes, data: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    return b"\x93NUMPY" + version + len(header).to_bytes(2, "little") + header + data


@pytest.fixture(scope="module")
def double(tmp_path_factory):
    return start(TensorHandler(), write_package(tmp_path_factory.mktemp("double"), TinyDouble, ONE_INPUT))


@pytest.fixture(scope="module")
def add(tmp_path_factory):
    return start(TensorHandler(), write_package(tmp_path_factory.mktemp("add"), TinySum, TWO_INPUTS))


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"[[0,1,2],[3,4,5]]", id="bare array"),
        pytest.param(b'{"values":[[0,1,2.0],[3,4,5e0]]}', id="by name"),
        pytest.param(b"[[[0,1,2],[3,4,5]]]", id="with a dimension of one row"),
        pytest.param(b'{"inputs":{"values":[[0,1,2],[3,4,5]]}}', id="under inputs"),
        pytest.param(bytearray(b" [[0,1,2],[3,4,5]] "), id="bytearray with spaces"),
        pytest.param({"values": [[0, 1, 2], [3, 4, 5]]}, id="decoded by TorchServe"),
        pytest.param([[0, 1, 2], [3, 4, 5]], id="list decoded by TorchServe"),
        pytest.param("[[0,1,2],[3,4,5]]", id="text decoded by TorchServe"),
    ],
)
def test_json_of_every_form_is_answered_in_json(double, body):
    (reply,) = ask(double, body)
    assert (reply.status, reply.content_type) == (200, "application/json")
    assert reply.json() == {"doubled": (GOOD * 2).tolist()}


@pytest.mark.parametrize(
    "array",
    [
        pytest.param(GOOD, id="float32"),
        pytest.param(GOOD.astype(np.float64), id="float64"),
        pytest.param(GOOD[np.newaxis], id="with a dimension of one row"),
        pytest.param(GOOD.astype(np.int16), id="int16"),
        pytest.param(GOOD.astype(">f4"), id="big endian"),
        pytest.param(np.asfortranarray(GOOD), id="fortran order"),
    ],
)
def test_npy_is_answered_in_npy(double, array):
    (reply,) = ask(double, npy(array))
    assert (reply.status, reply.content_type) == (200, "application/x-npy")
    np.testing.assert_array_equal(np.load(io.BytesIO(reply.body)), GOOD * 2)


@pytest.mark.parametrize("shape", [(20,), (1, 20), (512,), (1, 512)])
def test_a_row_of_any_length_may_have_a_dimension_of_one_row_in_json_and_in_npy(shape):
    spec, array = TensorSpec("ids", (512,), "int64", varies=0), np.arange(np.prod(shape)).reshape(shape)
    for row in (from_json(array.tolist(), spec), fit_array(array, spec)):
        np.testing.assert_array_equal(row, array.ravel())


@pytest.mark.parametrize("shape", [(2, 20), (1, 1, 20), (513,), (1, 513), (1, 0)])
def test_other_shapes_are_refused_with_their_own_sizes(shape):
    spec = TensorSpec("ids", (512,), "int64", varies=0)
    with pytest.raises(Unprocessable) as raised:
        fit_array(np.zeros(shape, dtype=np.int64), spec)
    assert (raised.value.details["got"], raised.value.details["allowed"]) == (str(list(shape)), "[1 to 512]")


def test_accept_header_chooses_the_format_of_the_answer(double):
    json_for_npy, npy_for_json = (
        ask(double, npy(GOOD), headers={"Accept": "application/json"})[0],
        ask(double, b"[[0,1,2],[3,4,5]]", headers=NPY)[0],
    )
    assert json_for_npy.json() == {"doubled": (GOOD * 2).tolist()}
    np.testing.assert_array_equal(np.load(io.BytesIO(npy_for_json.body)), GOOD * 2)


def test_several_inputs_and_outputs_go_by_name(add):
    (reply,) = ask(add, b'{"right":[[1,1,1],[1,1,1]],"left":[[0,1,2],[3,4,5]]}')
    assert reply.json() == {"sum": (GOOD + 1).tolist(), "ratio": 2.5}


@pytest.mark.parametrize(
    ("body", "got"),
    [
        (b'{"left":[]}', "an object of 1, no `right`"),
        (b'{"left":[],"Right":[]}', "an object of 2, no `right`, 1 too many"),
        (b'{"left":[],"right":[],"third":[]}', "an object of 3, 1 too many"),
        (b"[1]", "a list of 1, no `left`, `right`"),
    ],
)
def test_inputs_that_are_missing_are_named(add, body, got):
    (reply,) = ask(add, body)
    wrong = "the inputs are not those of the model"
    expected = {"error": wrong, "field": "inputs", "got": got, "allowed": "left, right"}
    assert (reply.status, reply.json()) == (422, expected)


@pytest.mark.parametrize("headers", [{}, {"Accept": "application/x-npy, application/json"}])
def test_npy_for_a_model_of_several_outputs_is_answered_in_json(tmp_path, headers):
    outputs = [{"name": name, "shape": [2, 3], "dtype": "float32"} for name in ("more", "doubled")]
    handler = start(TensorHandler(), write_package(tmp_path, TinyPair, ONE_INPUT, {"outputs": outputs}))
    (reply,) = ask(handler, npy(GOOD), headers=headers)
    assert reply.json() == {"more": (GOOD + 1).tolist(), "doubled": (GOOD * 2).tolist()}


def test_npy_answer_of_several_outputs_is_not_acceptable(add):
    (reply,) = ask(add, b'{"right":[[1,1,1],[1,1,1]],"left":[[0,1,2],[3,4,5]]}', headers=NPY)
    assert reply.status == 406
    assert reply.json() == {
        "error": "a .npy answer holds one array",
        "field": "accept",
        "got": "2 outputs",
        "allowed": "application/json",
    }


HEADER = b"{'descr': '%s', 'fortran_order': False, 'shape': %s, }\n"


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        pytest.param(b"", 400, "body", id="empty"),
        pytest.param(b"<html></html>", 400, "body", id="html"),
        pytest.param(b"[" * 100_000, 400, "body", id="deep lists"),
        pytest.param(b'{"a":' * 100_000, 400, "body", id="deep objects"),
        pytest.param(b"[[0,1,2],[3,4,NaN]]", 400, "body", id="NaN"),
        pytest.param(b"[[0,1,2],[3,4,1e999]]", 400, "body", id="infinity"),
        pytest.param(b'["\xff"]', 400, "body", id="not UTF-8"),
        pytest.param([[0, 1, 2], [3, 4, float("nan")]], 422, "values", id="NaN decoded by TorchServe"),
        pytest.param([[0, 1, 2], [3, 4, 10**400]], 422, "values", id="huge integer decoded by TorchServe"),
        pytest.param("\ud800", 400, "body", id="lone surrogate decoded by TorchServe"),
        pytest.param(7, 422, "values", id="number decoded by TorchServe"),
        pytest.param(True, 422, "values", id="boolean decoded by TorchServe"),
        pytest.param(None, 400, "body", id="null decoded by TorchServe"),
        pytest.param(b"[[0,1,2],[3,4,1e39]]", 422, "values", id="too large for float32"),
        pytest.param(b"[[0,1,2],[3,4,101]]", 422, "values", id="over the declared maximum"),
        pytest.param(b"[[0,1,2],[3,4]]", 422, "values[1]", id="ragged"),
        pytest.param(b"[[0,1,2],[3,4,[5]]]", 422, "values[1]", id="a list for a number"),
        pytest.param(b"[0,1,2,3,4,5]", 422, "values", id="wrong rank"),
        pytest.param(b"[[[0,1,2],[3,4,5]],[[0,1,2],[3,4,5]],[[0,1,2],[3,4,5]]]", 422, "values", id="of three rows"),
        pytest.param(b"[" * 500 + b"]" * 500, 422, "values", id="deep but parsed"),
        pytest.param(b'[[0,1,2],[3,4,"5"]]', 422, "values[1]", id="a string for a number"),
        pytest.param(b"[[0,1,2],[3,4,true]]", 422, "values[1]", id="a boolean for a number"),
        pytest.param(b"[[0,1,2],[3,4,null]]", 422, "values[1]", id="null for a number"),
        pytest.param(b'"values"', 422, "values", id="a string"),
        pytest.param(b"{}", 422, "inputs", id="no input"),
        pytest.param(b'{"values":[],"secret":1}', 422, "inputs", id="unknown input"),
        pytest.param(npy(GOOD[0]), 422, "values", id="npy of another shape"),
        pytest.param(npy(GOOD > 1), 422, "values", id="npy of booleans"),
        pytest.param(npy(GOOD * 1j), 400, "values", id="npy of complex numbers"),
        pytest.param(npy(GOOD + np.float32("nan")), 422, "values", id="npy with NaN"),
        pytest.param(npy(GOOD.astype(np.float64) * 1e300), 422, "values", id="npy too large for float32"),
        pytest.param(npy(np.array([{}, {}]), allow_pickle=True), 400, "values", id="npy with a pickle"),
        pytest.param(npy(GOOD)[:-1], 400, "values", id="npy cut short"),
        pytest.param(npy(GOOD) + b"\0", 400, "values", id="npy too long"),
        pytest.param(b"\x93NUMPY", 400, "body", id="npy without a header"),
        pytest.param(b"\x93NUMPY\x01", 400, "body", id="npy with half a header"),
        pytest.param(raw_npy(b"{" * 3000), 400, "values", id="npy with a nested header"),
        pytest.param(
            raw_npy(HEADER % (b"<f4", b"(100000, 100000, 100000)")), 413, "values", id="npy of huge dimensions"
        ),
        pytest.param(raw_npy(HEADER % (b"<f4", b"(99999999999999999999,)")), 413, "values", id="npy of an absurd side"),
        pytest.param(
            raw_npy(HEADER % (b"<f4", b"(0, %d)" % 10**30)), 413, "values", id="npy of nothing, absurdly wide"
        ),
        pytest.param(raw_npy(HEADER % (b"<f4", b"(7 7, 2, 3)"), bytes(24)), 400, "values", id="npy of half a side"),
        pytest.param(raw_npy(HEADER % (b"<f4", b"(-1, 3)")), 400, "values", id="npy of a negative side"),
        pytest.param(raw_npy(HEADER % (b"<f3", b"(2, 3)")), 400, "values", id="npy of an unknown type"),
        pytest.param(
            raw_npy(HEADER % (b"<f4", b"(" + b"1," * 90 + b")")), 413, "values", id="npy of too many dimensions"
        ),
        pytest.param(raw_npy(b"", version=b"\x09\x00"), 400, "body", id="npy of an unknown version"),
        pytest.param(b"\0" * 4_000_001, 413, "body", id="over the limit of bytes"),
    ],
)
def test_bad_body_gets_its_own_4xx_and_the_neighbours_their_answers(double, body, status, field):
    good = b"[[0,1,2],[3,4,5]]"
    expected = ask(double, good, good, good)
    before, reply, after = ask(double, good, body, good)
    assert (before.body, after.body) == (expected[0].body, expected[2].body)
    assert (before.status, reply.status, after.status) == (200, status, 200)
    assert reply.content_type == "application/json"
    assert reply.json()["field"] == field
    assert set(reply.json()) <= {"error", "field", "got", "allowed"}
    assert b"secret" not in reply.body


def test_error_says_what_where_got_and_allowed(double):
    (reply,) = ask(double, b"[[0,1,2],[3,4,-101]]")
    assert reply.json() == {
        "error": "a number is out of range",
        "field": "values",
        "got": -101.0,
        "allowed": "-100 to 100",
    }


@pytest.mark.parametrize(
    ("row", "headers", "status"),
    [
        pytest.param({"data": b"[[0,1,2],[3,4,5]]"}, {}, 200, id="form field named data"),
        pytest.param(
            {"upload": b"[[0,1,2],[3,4,5]]"}, {"upload": {"content-type": "application/json"}}, 200, id="one part"
        ),
        pytest.param({"body": b"", "data": b"[[0,1,2],[3,4,5]]"}, {}, 400, id="an empty body is not skipped"),
        pytest.param({"one": b"[]", "two": b"[]"}, {}, 400, id="two unnamed parts"),
        pytest.param({}, {}, 400, id="no part at all"),
        pytest.param(
            {"body": b"[[0,1,2],[3,4,5]]", "page": b"1"}, {"describe": "True", "explain": "True"}, 200, id="tricks"
        ),
        pytest.param({"body": b"[[0,1,2],[3,4,5]]"}, {"body": "a header of that name"}, 200, id="header named body"),
    ],
)
def test_rows_of_every_form(double, row, headers, status):
    (reply,) = ask_rows(double, [row], [headers])
    assert reply.status == status


def test_integer_input_takes_whole_numbers_of_its_range_only(tmp_path):
    record = {
        "inputs": [{"name": "values", "shape": [2], "dtype": "uint8"}],
        "outputs": [{"name": "doubled", "shape": [2], "dtype": "uint8"}],
    }
    handler = start(TensorHandler(), write_package(tmp_path, TinyDouble, record))
    good, fraction, large, negative = ask(handler, b"[1,127]", b"[1,2.5]", b"[1,256]", b"[-1,2]")
    assert good.json() == {"doubled": [2, 254]}
    assert [reply.status for reply in (fraction, large, negative)] == [422, 422, 422]
    assert (fraction.json()["got"], large.json()["got"], negative.json()["got"]) == ("a fraction", 256, -1)
    assert large.json()["allowed"] == "0 to 255"
    (huge,) = ask(handler, b"[1,%d]" % 2**70)
    assert (huge.status, huge.json()["got"]) == (422, "a number beyond 64 bits")


def test_a_number_on_a_limit_is_within_it_although_it_is_rounded(tmp_path):
    spec = {**ONE_INPUT["inputs"][0], "min": 0.1, "max": 0.1}
    handler = start(TensorHandler(), write_package(tmp_path, TinyDouble, ONE_INPUT, {"inputs": [spec]}))
    bodies = (npy(np.full((2, 3), 0.1, dtype)) for dtype in ("float32", "float64"))
    replies = ask(handler, b"[[0.1,0.1,0.1],[0.1,0.1,0.1]]", *bodies, b"[[0.1,0.1,0.1],[0.1,0.1,0.11]]")
    assert [reply.status for reply in replies] == [200, 200, 200, 422]


def test_a_boolean_of_npy_is_a_byte_of_zero_or_one(tmp_path):
    spec = {"name": "values", "shape": [2, 3], "dtype": "bool"}
    handler = start(TensorHandler(), write_package(tmp_path, TinyChoice, ONE_INPUT, {"inputs": [spec]}))
    good, bad = npy(GOOD > 2), npy(GOOD > 2)[:-1] + b"\xff"
    replies = ask(handler, good, bad, headers={"accept": "application/json"})
    assert replies[0].json() == {"doubled": [[0, 0, 0], [1, 1, 1]]}
    assert (replies[1].status, replies[1].json()["got"]) == (422, 255)


def test_long_string_in_a_list_takes_no_memory(double):
    (reply,) = ask(double, b'["' + b"x" * 1_000_000 + b'"' + b',""' * 500_000 + b"]")
    assert reply.status == 422


def test_a_compressed_body_is_refused_as_what_it_is(double):
    (reply,) = ask(double, gzip.compress(b"[[0,1,2],[3,4,5]]"), headers={"content-encoding": "gzip"})
    assert reply.status == 415
    assert reply.json() == {
        "error": "the body is compressed",
        "field": "content-encoding",
        "got": "gzip",
        "allowed": "a body that is not compressed",
    }
