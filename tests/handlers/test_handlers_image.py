import base64
import io
import json
import struct
import zlib

import numpy as np
import pytest
import torch
from fakes import CLASSES, IMAGE, MEAN, SIDE, STD, TinyClassifier, ask, ask_rows, start, write_package
from pictures import JPEG, PICTURE, PNG, SPEC, encoded, reference, smooth
from PIL import Image

from marina.handlers.image import FloatPictures, ImageHandler
from marina.handlers.pictures import decode_image
from marina.handlers.pictures.jpeg import MAX_SCANS
from marina.handlers.validation import TooLarge


def png_of(width: int, height: int, depth: int = 8, colour: int = 2) -> bytes:
    """A PNG that declares this size and has almost no data."""
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)),
        (b"IDAT", zlib.compress(b"\0" * 99)),
    ]
    body = b"\x89PNG\r\n\x1a\n"
    for name, data in [*chunks, (b"IEND", b"")]:
        body += struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    return body


def normalised(pixels: np.ndarray) -> np.ndarray:
    scaled = (pixels / 255 - np.array(MEAN)) / np.array(STD)
    return scaled.transpose(2, 0, 1).astype(np.float32)


EXACT = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def handler(tmp_path_factory):
    directory = tmp_path_factory.mktemp("image")
    (directory / "labels.txt").write_text("".join(f"class {index}\n" for index in range(CLASSES)))
    (directory / "sample.png").write_bytes(PNG)
    sample = {"labels": "labels.txt", "sample": {"file": "sample.png", "content_type": "image/png"}}
    return start(ImageHandler(), write_package(directory, TinyClassifier, IMAGE, sample))


def test_answer_holds_the_top_classes_with_their_labels(handler):
    (reply,) = ask(handler, PNG)
    answer = reply.json()
    assert (reply.status, reply.content_type) == (200, "application/json")
    assert list(answer) == ["top_indices", "top_probs", "top_labels"]
    assert answer["top_labels"] == [f"class {index}" for index in answer["top_indices"]]
    assert answer["top_probs"] == sorted(answer["top_probs"], reverse=True)
    pixels = torch.from_numpy(reference(PICTURE).copy())[None]
    assert answer["top_indices"] == TinyClassifier()(pixels)[1][0].tolist()


def test_labels_are_left_out_where_the_package_has_none(tmp_path):
    (reply,) = ask(start(ImageHandler(), write_package(tmp_path, TinyClassifier, IMAGE)), PNG)
    assert list(reply.json()) == ["top_indices", "top_probs"]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(JPEG, id="jpeg"),
        pytest.param(encoded(PICTURE, "JPEG", progressive=True, quality=95), id="progressive jpeg"),
        pytest.param(encoded(Image.fromarray(PICTURE).convert("CMYK"), "JPEG", quality=95), id="cmyk jpeg"),
        pytest.param(encoded(PICTURE[:, :, 0], "JPEG"), id="grey jpeg"),
        pytest.param(encoded(PICTURE, "PNG"), id="png"),
        pytest.param(encoded(PICTURE[:, :, 0].astype(np.uint16) * 257, "PNG"), id="16-bit png"),
        pytest.param(encoded(Image.fromarray(PICTURE).quantize(), "PNG"), id="palette png"),
        pytest.param(encoded(Image.fromarray(PICTURE).convert("1"), "PNG"), id="1-bit png"),
        pytest.param(encoded(Image.fromarray(PICTURE).convert("RGBA"), "PNG"), id="png with alpha"),
        pytest.param(encoded(PICTURE, "WEBP"), id="webp"),
        pytest.param(encoded(PICTURE, "WEBP", lossless=True), id="lossless webp"),
        pytest.param(encoded(Image.fromarray(PICTURE).convert("RGBA"), "WEBP"), id="webp with alpha"),
        pytest.param(encoded(PICTURE[:1, :1], "PNG"), id="one pixel"),
        pytest.param(encoded(smooth(3, 150), "PNG"), id="narrow"),
        pytest.param(json.dumps({"image": base64.b64encode(JPEG).decode()}).encode(), id="base64"),
        pytest.param(json.dumps({"image": "data:image/jpeg;base64," + base64.b64encode(JPEG).decode()}), id="data url"),
        pytest.param({"image": base64.b64encode(PNG).decode()}, id="base64 decoded by TorchServe"),
        pytest.param(bytearray(JPEG), id="bytearray"),
    ],
)
def test_every_kind_of_image_is_answered(handler, body):
    (reply,) = ask(handler, body)
    assert reply.status == 200, reply.body


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=array.dtype.kind == "O")
    return buffer.getvalue()


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(encoded(EXACT, "PNG"), id="png of the exact size"),
        pytest.param(npy(EXACT), id="npy of pixels"),
        pytest.param(npy(normalised(EXACT)), id="npy of normalised floats"),
        pytest.param(json.dumps({"image": normalised(EXACT).tolist()}).encode(), id="nested floats"),
        pytest.param(json.dumps({"image": normalised(EXACT).ravel().tolist()}).encode(), id="flat floats"),
        pytest.param({"image": normalised(EXACT).tolist()}, id="floats decoded by TorchServe"),
        pytest.param(npy(EXACT.transpose(2, 0, 1).astype(np.float32)), id="npy of levels as floats"),
        pytest.param(json.dumps({"image": EXACT.transpose(2, 0, 1).tolist()}).encode(), id="levels, channel-first"),
        pytest.param(npy(normalised(EXACT).astype(np.float16)), id="npy of 16-bit floats"),
        pytest.param(npy(normalised(EXACT).round(3)), id="floats of three decimals"),
    ],
)
def test_floats_and_npy_are_the_very_pixels(tmp_path_factory, body):
    spec = {"image": {**IMAGE["image"], "resize": SIDE}}
    handler = start(ImageHandler(), write_package(tmp_path_factory.mktemp("exact"), TinyClassifier, IMAGE, spec))
    expected, reply = ask(handler, npy(EXACT), body)
    assert reply.body == expected.body


def test_every_level_survives_normalisation():
    levels = np.arange(256, dtype=np.uint8).repeat(SIDE * SIDE * 3 // 256).reshape(SIDE, SIDE, 3)
    np.testing.assert_array_equal(FloatPictures(SPEC).pixels(normalised(levels)), levels)


BROKEN = bytearray(JPEG)
BROKEN[700:800] = b"\xff" * 100
SCANS = encoded(PICTURE, "JPEG", progressive=True)
SCAN = SCANS[SCANS.rindex(b"\xff\xda") : -2]
PIXELS = EXACT.tolist()


@pytest.mark.parametrize(
    ("body", "content_type", "status", "field"),
    [
        pytest.param(b"", "", 400, "body", id="empty"),
        pytest.param(JPEG[: len(JPEG) // 2], "", 400, "image", id="half a jpeg"),
        pytest.param(JPEG[: len(JPEG) // 2] + b"\xff\xd9", "", 400, "image", id="half a jpeg with an end"),
        pytest.param(JPEG[:-2], "", 400, "image", id="jpeg without its end"),
        pytest.param(JPEG[:10], "", 400, "image", id="jpeg without a header"),
        pytest.param(bytes(BROKEN), "", 400, "image", id="jpeg with damage"),
        pytest.param(SCANS[:-2] + SCAN * MAX_SCANS + b"\xff\xd9", "", 413, "image", id="jpeg with many scans"),
        pytest.param(PNG[: len(PNG) // 2], "", 400, "image", id="half a png"),
        pytest.param(PNG[:20], "", 400, "image", id="png without a header"),
        pytest.param(encoded(PICTURE, "WEBP")[:-9], "", 400, "image", id="webp cut short"),
        pytest.param(encoded(PICTURE, "WEBP")[:15], "", 400, "image", id="webp without a header"),
        pytest.param(png_of(50_000, 50_000), "", 413, "image", id="png bomb"),
        pytest.param(png_of(0, 0), "", 400, "image", id="png without pixels"),
        pytest.param(png_of(900, 900), "", 400, "image", id="png without data"),
        pytest.param(encoded(np.zeros((1, 1000, 3), np.uint8), "PNG"), "", 413, "image", id="narrower than 1:64"),
        pytest.param(encoded(np.zeros((1100, 1000, 3), np.uint8), "JPEG"), "", 413, "image", id="jpeg over the pixels"),
        pytest.param(encoded(np.zeros((1100, 1000, 3), np.uint8), "WEBP"), "", 413, "image", id="webp over the pixels"),
        pytest.param(
            encoded(np.zeros((1100, 1000, 3), np.uint8), "WEBP", lossless=True), "", 413, "image", id="lossless webp"
        ),
        pytest.param(encoded(np.zeros((1100, 1000, 4), np.uint8), "WEBP"), "", 413, "image", id="webp with alpha"),
        pytest.param(encoded(PICTURE, "AVIF"), "image/avif", 415, "body", id="avif"),
        pytest.param(encoded(PICTURE, "GIF")[:-90], "image/gif", 400, "image", id="gif cut short"),
        pytest.param(encoded(PICTURE, "TIFF", compression="jpeg"), "", 415, "image", id="jpeg in a tiff"),
        pytest.param(b"<svg xmlns='http://www.w3.org/2000/svg'/>", "image/svg+xml", 415, "body", id="svg"),
        pytest.param(b"<!doctype html><p>hello", "text/html", 415, "body", id="html"),
        pytest.param(np.random.default_rng(1).bytes(3_999_999), "", 415, "body", id="noise"),
        pytest.param(b"\0" * 20_000_000, "image/jpeg", 413, "body", id="20 MB"),
        pytest.param(JPEG, "application/json", 415, "content-type", id="jpeg called json"),
        pytest.param(b'{"image":""}', "image/png", 415, "content-type", id="json called png"),
        pytest.param(npy(EXACT), "image/png", 415, "content-type", id="npy called png"),
        pytest.param(b'\xef\xbb\xbf{"image":""}', "application/json", 400, "body", id="json after a byte order mark"),
        pytest.param('{"image":""}'.encode("utf-16"), "application/json", 400, "body", id="json in UTF-16"),
        pytest.param(b"null", "application/json", 422, "image", id="null"),
        pytest.param(b"[" * 100_000, "", 400, "body", id="deep json"),
        pytest.param(b"{}", "", 422, "image", id="no image"),
        pytest.param(b'{"image":7}', "", 422, "image", id="image is a number"),
        pytest.param(b'["image"]', "", 422, "image", id="a list"),
        pytest.param(b'{"image":"no base64!"}', "", 400, "image", id="broken base64"),
        pytest.param(b'{"image":"aGVsbG8="}', "", 415, "image", id="base64 of text"),
        pytest.param(b'{"image":[]}', "", 422, "image", id="no floats"),
        pytest.param(json.dumps({"image": PIXELS}).encode(), "", 422, "image", id="floats, channel-last"),
        pytest.param(json.dumps({"image": [True] * SIDE * SIDE * 3}).encode(), "", 422, "image", id="booleans"),
        pytest.param(npy(EXACT[1:]), "", 422, "image", id="npy of another size"),
        pytest.param(npy(EXACT.transpose(2, 0, 1)), "", 422, "image", id="npy of pixels, channel-first"),
        pytest.param(npy(normalised(EXACT) + np.float32("nan")), "", 422, "image", id="npy with NaN"),
        pytest.param(npy(EXACT.astype(np.int32) - 300), "", 422, "image", id="npy of negative levels"),
        pytest.param(npy(np.array([{}, {}])), "", 400, "image", id="npy with a pickle"),
    ],
)
def test_bad_body_gets_its_own_4xx_and_the_neighbours_their_answers(handler, body, content_type, status, field):
    expected = ask(handler, JPEG, JPEG, PNG)
    rows = [{"body": JPEG}, {"body": body}, {"body": PNG}]
    before, reply, after = ask_rows(handler, rows, [{}, {"Content-Type": content_type}, {}])
    assert (reply.status, reply.json()["field"]) == (status, field)
    assert reply.json()["error"]
    assert (before.status, after.status) == (200, 200)
    assert (before.body, after.body) == (expected[0].body, expected[2].body)


BLACK = np.zeros((3, SIDE, SIDE), np.float32)
LEVELS = EXACT.transpose(2, 0, 1).astype(np.float32)


@pytest.mark.parametrize(
    "values",
    [
        pytest.param(LEVELS / 255, id="divided by 255"),
        pytest.param(BLACK + 1, id="all white, divided by 255"),
        pytest.param(np.where(LEVELS > 127, 1, 0), id="black and white, divided by 255"),
        pytest.param(LEVELS / 255 * 2 - 1, id="minus one to one"),
        pytest.param(LEVELS + 0.5, id="between two levels"),
        pytest.param(np.clip(LEVELS.mean(0) + LEVELS * 0 + 0.3, 0, 255), id="an average of channels"),
        pytest.param((LEVELS / 255 - 0.5) / 0.5, id="normalised for another model"),
        pytest.param(normalised(EXACT) + 0.01, id="half a level beside the normalised grid"),
        pytest.param(LEVELS + 1, id="a level over white"),
        pytest.param(BLACK - 1, id="below black"),
    ],
)
def test_floats_on_neither_grid_are_refused_and_both_grids_named(handler, values):
    (reply,) = ask(handler, npy(values.astype(np.float32)))
    assert reply.status == 422
    assert "whole numbers from 0 to 255, or (level / 255 - 0." in reply.json()["allowed"]


def test_floats_of_zero_are_black(handler):
    (reply, expected) = ask(handler, npy(BLACK), npy(np.zeros((SIDE, SIDE, 3), np.uint8)))
    assert reply.status == 200
    assert reply.body == expected.body


def test_range_of_normalised_values_is_named_per_channel(handler):
    values = normalised(EXACT)
    values[1, 0, 0] = 3.0
    (reply,) = ask(handler, npy(values))
    assert reply.json() == {
        "error": "the values of channel 1 are neither grey levels nor normalised ones",
        "field": "image",
        "got": f"{values[1].min():.4f} to 3.0000",
        "allowed": "whole numbers from 0 to 255, or (level / 255 - 0.456) / 0.224 of them, that is -2.0357 to 2.4286 "
        "in steps of 0.0175",
    }


def test_bomb_is_named_by_its_declared_size(handler):
    (reply,) = ask(handler, png_of(50_000, 40_000))
    assert reply.json() == {
        "error": "the image is too large",
        "field": "image",
        "got": "50000x40000 pixels",
        "allowed": "at most 1000000 pixels",
    }


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(png_of(50_000, 50_000), id="png"),
        pytest.param(encoded(np.zeros((1100, 1000, 3), np.uint8), "WEBP"), id="webp"),
        pytest.param(encoded(np.zeros((1100, 1000, 3), np.uint8), "WEBP", lossless=True), id="lossless webp"),
        pytest.param(encoded(np.zeros((1100, 1000, 4), np.uint8), "WEBP"), id="webp with alpha"),
        pytest.param(encoded(np.zeros((1100, 1000, 4), np.uint8)[:, :, :3], "JPEG"), id="jpeg"),
    ],
)
def test_large_images_are_refused_before_pillow_opens_them(monkeypatch, body):
    monkeypatch.setattr(Image, "open", lambda *_, **__: pytest.fail("must not be called"))
    with pytest.raises(TooLarge):
        decode_image(body, SPEC)


def test_image_may_come_as_a_form_field(handler):
    part = {"photo": {"content-type": "image/jpeg"}, "content-type": "multipart/form-data; boundary=x"}
    (reply,) = ask_rows(handler, [{"photo": JPEG}], [part])
    assert reply.status == 200
