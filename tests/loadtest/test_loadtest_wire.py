from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.sending import Expected, Request
from loadtest.sending.answers import Checker, has_structure
from loadtest.sending.wire import AnswerReader, BrokenAnswer, HttpAnswer

BODY = b'{"top_indices": [1]}'
PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\nX: y\r\n\r\n" + BODY
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b'9;x=y\r\n{"top_ind\r\nb\r\nices": [1]}\r\n0\r\nTrailer: z\r\n\r\n'
)
CONTINUED = b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN
CLOSING = b"HTTP/1.1 503 X\r\ncontent-length: 2\r\nConnection: close\r\n\r\n{}"


def read(data: bytes, cuts: list[int]) -> HttpAnswer | None:
    reader, answer = AnswerReader(), None
    edges = [0, *sorted({cut % len(data) for cut in cuts}), len(data)]
    for start, end in pairwise(edges):
        if start < end:
            assert answer is None
            answer = reader.feed(data[start:end])
    return answer


@pytest.mark.parametrize("data", [PLAIN, CHUNKED, CONTINUED], ids=["length", "chunked", "continue"])
@given(cuts=st.lists(st.integers(0, 200), max_size=8))
def test_an_answer_is_read_however_it_is_cut(data: bytes, cuts: list[int]) -> None:
    assert read(data, cuts) == HttpAnswer(200, BODY, keep_alive=True)


def test_a_server_that_closes_is_not_asked_again_on_that_connection() -> None:
    assert read(CLOSING, []) == HttpAnswer(503, b"{}", keep_alive=False)
    assert read(PLAIN.replace(b"1.1", b"1.0"), []) == HttpAnswer(200, BODY, keep_alive=False)


def test_bytes_after_an_answer_end_the_connection() -> None:
    assert read(PLAIN + b"HTTP", []) == HttpAnswer(200, BODY, keep_alive=False)


def test_a_body_without_length_ends_with_the_connection() -> None:
    reader = AnswerReader()
    assert reader.feed(b"HTTP/1.1 200 OK\r\n\r\nabc") is None
    assert reader.finish() == HttpAnswer(200, b"abc", keep_alive=False)


@pytest.mark.parametrize("data", [PLAIN[:-1], CHUNKED[:-3], PLAIN[:10], b""], ids=["body", "chunks", "head", "nothing"])
def test_a_connection_that_ends_early_is_broken(data: bytes) -> None:
    reader = AnswerReader()
    assert reader.feed(data) is None
    with pytest.raises(BrokenAnswer):
        reader.finish()


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
    ids=["no http", "no length", "no chunk size"],
)
def test_what_is_no_answer_is_broken(data: bytes) -> None:
    with pytest.raises(BrokenAnswer):
        AnswerReader().feed(data)


def test_the_request_is_encoded_with_its_length_and_host() -> None:
    request = Request(url="http://host:8080/predictions/m?x=1", body=b"YWJj", content_type="image/png")
    head, _, body = request.wire_bytes().partition(b"\r\n\r\n")
    assert head.split(b"\r\n")[:2] == [b"POST /predictions/m?x=1 HTTP/1.1", b"Host: host:8080"]
    assert b"Content-Length: 3" in head.split(b"\r\n")
    assert body == b"abc"
    assert request.address == ("host", 8080)


EXPECTED = Expected(form="json", keys=("top_indices",))


@pytest.mark.parametrize(
    ("status", "body", "name"),
    [
        pytest.param(200, BODY, None, id="good"),
        pytest.param(200, b"{}", "malformed", id="key missing"),
        pytest.param(200, b"[1]", "malformed", id="no object"),
        pytest.param(200, b"\xff", "malformed", id="no text"),
        pytest.param(503, b'{"message": "Model \\"m\\" has no worker to serve inference request"}', "shed", id="shed"),
        pytest.param(503, b'{"message": "Prediction failed"}', "http 503", id="handler failed"),
        pytest.param(500, b"has no worker to serve", "http 500", id="shed in words only"),
        pytest.param(413, b"", "http 413", id="too large"),
        pytest.param(302, b"", "http 302", id="redirect"),
    ],
)
def test_each_answer_has_its_name(status: int, body: bytes, name: str | None) -> None:
    assert Checker(EXPECTED).failure(HttpAnswer(status, body, keep_alive=True)) == name


def test_a_known_good_body_is_not_good_with_another_status() -> None:
    checker = Checker(EXPECTED)
    assert checker.failure(HttpAnswer(200, BODY, keep_alive=True)) is None
    assert checker.failure(HttpAnswer(200, BODY, keep_alive=True)) is None
    assert checker.failure(HttpAnswer(500, BODY, keep_alive=False)) == "http 500"


def test_structure_of_arrays_and_of_own_handlers() -> None:
    assert has_structure(b"\x93NUMPY...", Expected(form="npy"))
    assert not has_structure(b"{}", Expected(form="npy"))
    assert has_structure(b"anything", Expected())
