import base64
import errno
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marina.config.errors import InputError
from marina.loadtest.sending import Client, LoadRequest, parse_header, send_and_check
from marina.loadtest.sending.client import Checker, has_structure
from marina.loadtest.sending.plan import Expected
from marina.loadtest.sending.wire import AnswerReader, BrokenAnswer, HttpAnswer

BODY = b'{"top_indices": [1]}'
PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\nX: y\r\n\r\n" + BODY
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b'9;x=y\r\n{"top_ind\r\nb\r\nices": [1]}\r\n0\r\nTrailer: z\r\n\r\n'
)
CONTINUED = b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN
CLOSING = b"HTTP/1.1 503 X\r\ncontent-length: 2\r\nConnection: close\r\n\r\n{}"


@pytest.mark.parametrize(
    ("text", "header"),
    [
        pytest.param("Authorization: Bearer $TOKEN", ("Authorization", "Bearer s3cret"), id="a variable"),
        pytest.param("X-Key:${TOKEN}!", ("X-Key", "s3cret!"), id="a variable in braces"),
        pytest.param("X-Price: $$5", ("X-Price", "$5"), id="a dollar sign"),
        pytest.param("Host: models.example:8443", ("Host", "models.example:8443"), id="a colon in the value"),
    ],
)
def test_a_header_takes_values_from_the_environment(text: str, header: tuple[str, str]) -> None:
    assert parse_header(text, {"TOKEN": "s3cret"}) == header


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(
            "Authorization",
            "not a header, allowed: `NAME: VALUE`, such as `Authorization: Bearer $TOKEN`",
            id="no value",
        ),
        pytest.param(
            "Two words: x", "not a header, allowed: `NAME: VALUE`, such as `Authorization: Bearer $TOKEN`", id="no name"
        ),
        pytest.param("content-length: 5", "`content-length` is set by the load test itself", id="ours"),
        pytest.param("X: $NONE", "`X`: $NONE is not set", id="no such variable"),
        pytest.param("X: 5 $", "`X`: a dollar sign is written `$$`", id="a lone dollar sign"),
        pytest.param(
            "X: $TOKEN",
            "`X`: the value holds a line break or a character that headers cannot hold",
            id="another header in a value",
        ),
    ],
)
def test_a_header_that_cannot_be_sent_is_refused_without_its_value(text: str, message: str) -> None:
    with pytest.raises(InputError) as raised:
        parse_header(text, {"TOKEN": "s3cret\r\nX-Evil: 1"})
    assert raised.value.message == f"`--header`: {message}"


def test_headers_are_sent_and_replace_the_usual_ones() -> None:
    request = LoadRequest(
        url="http://10.0.0.7:8080/predictions/m",
        body=b"YQ==",
        content_type="text/plain",
        headers=(("Host", "models.example"), ("accept", "image/png"), ("Authorization", "Bearer s3cret")),
    )
    lines = request.wire_bytes().split(b"\r\n")
    assert [line for line in lines if line.lower().startswith(b"host:")] == [b"Host: models.example"]
    assert [line for line in lines if line.lower().startswith(b"accept:")] == [b"accept: image/png"]
    assert b"Authorization: Bearer s3cret" in lines


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
def test_an_answer_is_read_however_it_is_split(data: bytes, cuts: list[int]) -> None:
    assert read(data, cuts) == HttpAnswer(200, BODY, keep_alive=True)


def test_a_connection_that_the_server_closes_is_not_used_again() -> None:
    assert read(CLOSING, []) == HttpAnswer(503, b"{}", keep_alive=False)
    assert read(PLAIN.replace(b"1.1", b"1.0"), []) == HttpAnswer(200, BODY, keep_alive=False)


@pytest.mark.parametrize("status", [204, 304])
def test_an_answer_that_never_has_a_body_is_complete_without_it(status: int) -> None:
    data = b"HTTP/1.1 %d X\r\nContent-Length: 48\r\n\r\n" % status
    assert read(data, []) == HttpAnswer(status, b"", keep_alive=True)


@pytest.mark.slow
def test_a_large_answer_in_small_pieces_is_read_at_once() -> None:
    # If each piece were added by copying all before it, this would take an hour.
    size, piece, reader = 64_000_000, b"x" * 1000, AnswerReader()
    assert reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size) is None
    answers = [reader.feed(piece) for _ in range(size // len(piece))]
    assert answers[-2] is None
    assert answers[-1] is not None
    assert len(answers[-1].body) == size


def test_bytes_after_an_answer_end_the_connection() -> None:
    assert read(PLAIN + b"HTTP", []) == HttpAnswer(200, BODY, keep_alive=False)


def test_a_body_without_length_ends_with_the_connection() -> None:
    reader = AnswerReader()
    assert reader.feed(b"HTTP/1.1 200 OK\r\n\r\nabc") is None
    assert reader.finish() == HttpAnswer(200, b"abc", keep_alive=False)


def test_the_pieces_of_a_body_without_length_are_seen_as_they_arrive() -> None:
    pieces: list[bytes] = []
    reader = AnswerReader(pieces.append)
    for data in (b"HTTP/1.0 200 OK\r\n\r\n", b"data: 1\n\n", b"data: [DONE]\n\n"):
        assert reader.feed(data) is None
    assert pieces == [b"data: 1\n\n", b"data: [DONE]\n\n"]
    assert reader.finish() == HttpAnswer(200, b"data: 1\n\ndata: [DONE]\n\n", keep_alive=False)


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
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-6\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n-6\r\n",
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000,
    ],
    ids=[
        "no http",
        "no length",
        "a length of 5,000 digits",
        "no chunk size",
        "an empty chunk size",
        "a negative chunk size",
        "a negative size of a later chunk",
        "no http and no end",
        "a head without end",
    ],
)
def test_bytes_that_are_not_an_answer_are_broken(data: bytes) -> None:
    with pytest.raises(BrokenAnswer):
        AnswerReader().feed(data)


def test_the_request_is_encoded_with_its_length_and_host() -> None:
    request = LoadRequest(url="http://host:8080/predictions/m?x=1", body=b"YWJj", content_type="image/png")
    head, _, body = request.wire_bytes().partition(b"\r\n\r\n")
    assert head.split(b"\r\n")[:2] == [b"POST /predictions/m?x=1 HTTP/1.1", b"Host: host:8080"]
    assert b"Content-Length: 3" in head.split(b"\r\n")
    assert b"Accept-Encoding: identity" in head.split(b"\r\n")
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
        pytest.param(200, b"[" * 100_000, "malformed", id="too deep to be parsed"),
        pytest.param(503, b'{"error":"overloaded: the queue is full, or no worker is ready"}', "shed", id="shed"),
        pytest.param(503, b'{"error":"overloaded: too many large bodies at once"}', "shed", id="shed by memory"),
        pytest.param(
            503,
            b'{"message": "Model \\"m\\" has no worker to serve inference request"}',
            "shed",
            id="shed by a bare TorchServe",
        ),
        pytest.param(503, b'{"message": "Prediction failed"}', "http 503", id="handler failed"),
        pytest.param(500, b"has no worker to serve", "http 500", id="shed in words only"),
        pytest.param(413, b"", "http 413", id="too large"),
        pytest.param(429, b"", "limited", id="refused by a rate limit"),
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


@pytest.mark.parametrize(
    ("number", "name"), [(errno.EADDRNOTAVAIL, "unsent"), (errno.EMFILE, "unsent"), (errno.ECONNRESET, "broken")]
)
def test_what_this_machine_lacks_for_a_connection_is_not_the_servers_fault(
    number: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, "")

    monkeypatch.setattr(Client, "_connect_to", fail)
    request = LoadRequest(url="http://127.0.0.1:1/", body=base64.b64encode(b""), content_type="image/png")
    assert send_and_check(Client(request), 0, Checker(EXPECTED), 60, time.perf_counter).failure == name
