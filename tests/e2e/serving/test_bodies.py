"""Bodies nobody should send, through a real TorchServe: each is answered alone and no worker dies of it."""

import json
import struct
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from pictures import encoded
from PIL import Image
from running import Running
from specs import ROOT
from waiting import worker_pids

pytestmark = pytest.mark.e2e

SAMPLES = sorted((ROOT / "config/examples/digits/samples").glob("*.png"))
DIGIT = SAMPLES[3].read_bytes()


def bomb() -> bytes:
    """A PNG of a few bytes that says it is 50,000 pixels wide and high."""
    header = struct.pack(">IIBBBBB", 50_000, 50_000, 8, 0, 0, 0, 0)
    chunk = b"IHDR" + header
    start = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", len(header)) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return start + b"\0\0\0\0IEND\xaeB`\x82"


PHOTO = Image.effect_noise((320, 240), 60)
JPEG = encoded(PHOTO, "JPEG")
TENSOR = [[[0.0] * 8] * 8]
MULTIPART = (
    b'--b\r\nContent-Disposition: form-data; name="image"; filename="3.png"\r\nContent-Type: image/png\r\n\r\n'
    + DIGIT
    + b"\r\n--b--\r\n"
)

GOOD = [
    pytest.param(JPEG, "image/jpeg", id="jpeg"),
    pytest.param(encoded(PHOTO, "JPEG", progressive=True), "image/jpeg", id="progressive jpeg"),
    pytest.param(encoded(PHOTO.convert("CMYK"), "JPEG"), "image/jpeg", id="cmyk jpeg"),
    pytest.param(encoded(Image.fromarray(np.full((8, 8), 40_000, np.uint16)), "PNG"), "image/png", id="16-bit png"),
    pytest.param(encoded(PHOTO, "WEBP"), "image/webp", id="webp"),
    pytest.param(encoded(PHOTO, "BMP"), "image/bmp", id="bmp"),
    pytest.param(encoded(PHOTO, "GIF"), "image/gif", id="gif"),
    pytest.param(encoded(PHOTO, "TIFF", compression="tiff_lzw"), "image/tiff", id="tiff"),
    pytest.param(json.dumps({"image": TENSOR}).encode(), "application/json", id="json tensor"),
    pytest.param(MULTIPART, "multipart/form-data; boundary=b", id="multipart"),
]
BAD = [
    pytest.param(DIGIT, "application/x-www-form-urlencoded", {415}, id="curl without a content type"),
    pytest.param(b"", "image/png", {400}, id="0 bytes"),
    pytest.param(JPEG[: len(JPEG) // 2], "image/jpeg", {400}, id="truncated jpeg"),
    pytest.param(DIGIT[:60], "image/png", {400}, id="truncated png"),
    pytest.param(bomb(), "image/png", {413}, id="decompression bomb"),
    pytest.param(DIGIT, "application/json", {415}, id="an image called json"),
    pytest.param(b"[" * 100_000, "application/json", {400}, id="deep json"),
    pytest.param(b'{"image": NaN}', "application/json", {400}, id="NaN"),
    pytest.param(json.dumps({"image": [[0.0] * 8] * 8}).encode(), "application/json", {422}, id="wrong rank"),
    pytest.param(np.random.default_rng(0).bytes(9_000_000), "image/jpeg", {415}, id="9 MB of noise"),
    pytest.param(np.random.default_rng(0).bytes(20 * 2**20), "image/jpeg", {413}, id="20 MB of noise"),
    pytest.param(b"--b\r\n--b--\r\n", "multipart/form-data; boundary=b", {400}, id="multipart without parts"),
    pytest.param(b"<svg xmlns='http://www.w3.org/2000/svg'/>", "image/svg+xml", {415}, id="svg"),
]


def ask(server: Running, body: bytes, content_type: str, path: str = "") -> tuple[int, bytes]:
    url = f"{server.url}/predictions/digits{path}"
    request = urllib.request.Request(url, data=body, headers={"Content-Type": content_type}, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as err:
        return err.code, err.read()


@pytest.fixture
def server(digits_server: Running) -> Iterator[Running]:
    """The shared server; its workers must be the same ones afterwards."""
    before = sorted(worker_pids(digits_server))
    yield digits_server
    assert sorted(worker_pids(digits_server)) == before
    assert digits_server.readiness()[0]


@pytest.mark.parametrize(("body", "content_type"), GOOD)
def test_a_good_body_is_answered(server: Running, body: bytes, content_type: str) -> None:
    status, answer = ask(server, body, content_type)
    assert status == 200, answer
    assert set(json.loads(answer)) == {"top_indices", "top_probs", "top_labels"}


@pytest.mark.parametrize(("body", "content_type", "statuses"), BAD)
def test_a_bad_body_gets_its_own_4xx_and_its_neighbours_their_answers(
    server: Running, body: bytes, content_type: str, statuses: set[int]
) -> None:
    alone = [ask(server, sample.read_bytes(), "image/png") for sample in SAMPLES]
    with ThreadPoolExecutor(len(SAMPLES) + 1) as clients:
        bad = clients.submit(ask, server, body, content_type)
        together = list(clients.map(lambda sample: ask(server, sample.read_bytes(), "image/png"), SAMPLES))
    status, answer = bad.result()
    assert status in statuses, answer
    assert json.loads(answer)["error"]
    assert [json.loads(body)["top_indices"] for _, body in together] == [
        json.loads(body)["top_indices"] for _, body in alone
    ]
    assert {status for status, _ in together} == {200}


def test_a_body_far_over_the_limit_is_refused_before_any_handler_sees_it(server: Running) -> None:
    status, body = ask(server, bytes(30_000_000), "image/jpeg")
    refusal = {"error": "the body is too large", "field": "body", "allowed": "at most 25000000 bytes"}
    assert (status, json.loads(body)) == (413, refusal)


def test_a_request_cannot_spoil_its_batch_with_headers(server: Running) -> None:
    """`describe` and `explain` make TorchServe's own handlers answer a whole batch with one thing."""
    url = f"{server.url}/predictions/digits"
    headers = {"Content-Type": "image/png", "describe": "True", "explain": "True"}
    request = urllib.request.Request(url, data=DIGIT, headers=headers, method="POST")
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert json.load(answer)["top_labels"][0] == "3"
