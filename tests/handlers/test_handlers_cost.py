"""What a request may cost a worker: too much is refused by the header before it is spent, and memory is returned
afterwards."""

import io
import json
import os
import struct
import subprocess
import sys
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from fakes import IMAGE, MEAN, ONE_INPUT, SIDE, STD, TinyClassifier, TinyDouble, ask, start, write_package
from pictures import JPEG, PICTURE, PNG, SPEC, distance, encoded
from PIL import Image

from marina.config import spec
from marina.handlers import memory
from marina.handlers.image import ImageHandler
from marina.handlers.pictures import cost, decode_image, jpeg, setup_pillow
from marina.handlers.record import ImageSpec
from marina.handlers.tensor import TensorHandler
from marina.handlers.validation import Malformed, TooLarge, Unsupported

LARGE = ImageSpec(SIDE, SIDE, SIDE, 3, MEAN, STD, "bilinear", 3, 16_000_000)
# The server's settings of glibc for its workers, with which it keeps freed memory.
ALLOCATOR = "glibc.malloc.mmap_threshold=1073741824:glibc.malloc.trim_threshold=1073741824"
CHILD = """
import json, sys
from marina.handlers import memory
from marina.handlers.pictures import decode_image, setup_pillow
from marina.handlers.record import ImageSpec

def status(name):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

spec = ImageSpec(32, 32, 32, 3, (0.5,), (0.5,), "bilinear", 3, 16_000_000)
setup_pillow()
small, large = (open(path, "rb").read() for path in sys.argv[1:])
decode_image(small, spec)
memory.release_freed()
before = status("VmRSS")
with open("/proc/self/clear_refs", "w") as peak:
    peak.write("5")
for _ in range(3):
    decode_image(large, spec)
    estimate = memory._Ledger.largest_bytes
    given_back = memory.release_freed()
print(json.dumps([estimate, status("VmHWM") - before, status("VmRSS") - before, given_back]))
"""


def flat(mode: str, side: int) -> Image.Image:
    return Image.new(mode, (side, side), 90 if mode in ("L", "P", "I;16") else (90, 20, 60, 40)[: len(mode)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("small", "large"),
    [
        pytest.param(("PNG", "RGB", {}), 2650, id="png"),
        pytest.param(("PNG", "RGBA", {}), 2650, id="png with alpha"),
        pytest.param(("PNG", "I;16", {}), 3150, id="16-bit png"),
        pytest.param(("PNG", "P", {}), 3550, id="palette png"),
        pytest.param(("WEBP", "RGB", {}), 1650, id="webp"),
        pytest.param(("WEBP", "RGBA", {"lossless": True, "method": 0}), 1650, id="lossless webp with alpha"),
        pytest.param(("JPEG", "RGB", {"progressive": True, "subsampling": 0}), 2800, id="progressive jpeg"),
        pytest.param(("JPEG", "CMYK", {"progressive": True}), 2400, id="jpeg for print"),
        pytest.param(("BMP", "P", {}), 2500, id="bmp with a palette"),
        pytest.param(("GIF", "P", {"transparency": 0}), 3000, id="gif"),
        pytest.param(("TIFF", "RGB", {"compression": "tiff_lzw", "strip_size": 2**30}), 2100, id="tiff of one strip"),
        pytest.param(("TIFF", "CMYK", {"compression": "tiff_lzw"}), 2500, id="tiff of inks"),
    ],
)
def test_a_picture_takes_no_more_memory_than_estimated_and_none_of_it_stays(tmp_path, small, large):
    kind, mode, options = small
    files = [tmp_path / "small", tmp_path / "large"]
    for file, side in zip(files, (100, large), strict=True):
        file.write_bytes(encoded(flat(mode, side), kind, **options))
    environment = {**os.environ, "GLIBC_TUNABLES": ALLOCATOR, "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-c", CHILD, *map(str, files)]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(words, env=environment, cwd=root, check=True, capture_output=True, text=True)
    estimate, peak, stays, given_back = json.loads(done.stdout)
    assert 45_000_000 < estimate <= 64_000_000
    assert peak <= estimate
    if given_back:
        assert stays < 20_000_000


@pytest.mark.parametrize(
    ("kind", "mode", "options", "side"),
    [
        pytest.param("WEBP", "RGB", {}, 1900, id="webp"),
        pytest.param("PNG", "RGB", {"compress_level": 1}, 3000, id="png"),
        pytest.param("JPEG", "RGB", {"progressive": True, "subsampling": 0}, 3300, id="progressive jpeg"),
        pytest.param("JPEG", "CMYK", {"progressive": True}, 2900, id="jpeg for print"),
    ],
)
def test_a_picture_over_the_memory_is_refused_before_it_is_decoded(monkeypatch, kind, mode, options, side):
    body = encoded(flat(mode, side), kind, **options)
    monkeypatch.setattr(cost, "DECODED_BYTES", 64_000_000)
    monkeypatch.setattr(Image, "open", lambda *_, **__: pytest.fail("must not be called"))
    monkeypatch.setattr(simplejpeg, "decode_jpeg", lambda *_, **__: pytest.fail("must not be called"))
    with pytest.raises(TooLarge) as caught:
        decode_image(body, LARGE)
    assert caught.value.body()["error"] == "decoding the image takes too much memory"
    assert caught.value.body()["allowed"].startswith("at most 64 MB")


def gif(screen: tuple[int, int], frame: tuple[int, int], before: bytes = b"") -> bytes:
    """A GIF whose picture and first frame declare these sizes, which is to be cleared after the frame."""
    control = b"!\xf9\x04\x09\0\0\0\0"
    head = b"GIF89a" + struct.pack("<HHBBB", *screen, 0x80, 0, 0) + bytes(6) + before + control
    return head + b"," + struct.pack("<HHHHB", 0, 0, *frame, 0) + b"\x02\x02\x44\x01\0;"


def tiff(**changed: int | tuple[int, ...]) -> bytes:
    """A grey TIFF of 32 x 32 pixels with one strip, except for what is changed."""
    tags = {"width": 256, "height": 257, "bits": 258, "compression": 259, "colours": 262, "offsets": 273}
    tags |= {"rows": 278, "counts": 279, "planes": 284, "tile_width": 322, "tile_height": 323, "format": 339}
    values = {"width": 32, "height": 32, "bits": 8, "compression": 5, "colours": 1, "offsets": 8, "rows": 32}
    entries, lists = b"", bytes(64)
    for name, value in sorted((values | {"counts": 64} | changed).items(), key=lambda each: tags[each[0]]):
        several = value if isinstance(value, tuple) else (value,)
        entries += struct.pack(
            "<HHII", tags[name], 4, len(several), several[0] if len(several) == 1 else 8 + len(lists)
        )
        lists += struct.pack(f"<{len(several)}I", *several) if len(several) > 1 else b""
    count = struct.pack("<H", len(entries) // 12)
    return b"II*\0" + struct.pack("<I", 8 + len(lists)) + lists + count + entries + bytes(4)


def bmp(width: int, height: int, compression: int = 0) -> bytes:
    size = struct.pack("<IiiHHIIIIII", 40, width, height, 1, 8, compression, 0, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 1078, 0, 0, 1078) + size + bytes(1024 + 64)


@pytest.mark.parametrize(
    ("body", "error", "words"),
    [
        pytest.param(gif((60_000, 60_000), (1, 1)), TooLarge, "the image is too large", id="gif"),
        pytest.param(gif((9, 9), (60_000, 60_000)), Malformed, "does not lie in its picture", id="frame of a gif"),
        pytest.param(
            gif((9, 9), (9, 9), b"!\xfe" + b"\1x" * 60_000 + b"\0"), TooLarge, "before", id="comments of a gif"
        ),
        pytest.param(bmp(60_000, -60_000), TooLarge, "the image is too large", id="bmp"),
        pytest.param(bmp(-5, 5), Malformed, "no pixels", id="bmp of a negative width"),
        pytest.param(bmp(99, 99, 1), Unsupported, "this BMP is compressed", id="compressed bmp"),
        pytest.param(tiff(width=60_000, height=60_000), TooLarge, "the image is too large", id="tiff"),
        pytest.param(
            tiff(offsets=(8,) * 32, counts=(64,) * 32), Malformed, "longer than the file", id="strips of a tiff"
        ),
        pytest.param(tiff(tile_width=2**31, tile_height=2**20), TooLarge, "too much memory", id="tile of a tiff"),
        pytest.param(
            tiff(offsets=(8,) * 100_000, counts=(0,) * 100_000), TooLarge, "too many pieces", id="many strips"
        ),
        pytest.param(tiff(compression=7), Unsupported, "this kind of TIFF", id="jpeg in a tiff"),
        pytest.param(tiff(planes=2), Unsupported, "this kind of TIFF", id="planes of a tiff"),
        pytest.param(tiff(format=3, bits=32), Unsupported, "this kind of TIFF", id="floats in a tiff"),
        pytest.param(tiff(bits=16, colours=0), Unsupported, "this kind of TIFF", id="16 bits from white to black"),
    ],
)
def test_an_older_format_is_refused_before_pillow_opens_it(monkeypatch, body, error, words):
    monkeypatch.setattr(Image, "open", lambda *_, **__: pytest.fail("must not be called"))
    with pytest.raises(error, match=words):
        decode_image(body, LARGE)


def test_what_a_tiff_says_beside_its_pixels_is_not_read(monkeypatch):
    exif = Image.Exif()
    exif.get_ifd(0x8769)[0x9286] = b"x" * 50_000
    body = encoded(Image.fromarray(PICTURE), "TIFF", exif=exif, tiffinfo={0x010E: "words"})
    seen = []
    monkeypatch.setattr(Image.Exif, "get_ifd", lambda _, tag: seen.append(tag))
    assert distance(decode_image(body, SPEC), decode_image(PNG, SPEC)) == 0
    assert seen == []


def test_a_pod_has_the_memory_that_decoding_may_take():
    assert (spec.DECODED_BYTES, spec.PIXEL_BYTES) == (cost.DECODED_BYTES, cost.PIXEL_BYTES)


def test_a_large_baseline_jpeg_takes_little_memory_and_is_answered():
    assert decode_image(encoded(flat("RGB", 3300), "JPEG"), LARGE).shape == (SIDE, SIDE, 3)


SCANS = encoded(flat("RGB", 800), "JPEG", progressive=True)
LAST_SCAN = SCANS[SCANS.rindex(b"\xff\xda") : -2]


def test_scans_are_counted_against_the_samples_they_visit(monkeypatch):
    monkeypatch.setattr(cost, "MAX_VISITS", 20_000_000)
    monkeypatch.setattr(simplejpeg, "decode_jpeg", lambda *_, **__: np.zeros((100, 100, 3), np.uint8))
    decode_image(SCANS[:-2] + LAST_SCAN * 20 + b"\xff\xd9", SPEC)
    with pytest.raises(TooLarge) as caught:
        decode_image(SCANS[:-2] + LAST_SCAN * 40 + b"\xff\xd9", SPEC)
    assert caught.value.body() == {
        "error": "the scans of the JPEG take too long to decode",
        "field": "image",
        "got": "31 million samples in all scans",
        "allowed": "at most 20 million",
    }


@pytest.mark.parametrize(("subsampling", "visits"), [(0, 14), (2, 8)])
def test_what_encoders_write_is_well_below_the_limit(subsampling, visits):
    body = encoded(flat("RGB", 800), "JPEG", progressive=True, subsampling=subsampling)
    assert jpeg.scan_cost(body, jpeg.read_frame(body)).visits <= visits * 800 * 800
    assert visits * 24_000_000 < cost.MAX_VISITS


def test_a_jpeg_that_is_neither_baseline_nor_progressive_is_refused():
    with pytest.raises(Unsupported):
        decode_image(JPEG.replace(b"\xff\xc0", b"\xff\xc3"), SPEC)


def test_a_jpeg_with_two_frames_is_refused():
    start_of_frame = JPEG.index(b"\xff\xc0")
    frame = JPEG[start_of_frame : JPEG.index(b"\xff\xc4")]
    with pytest.raises(Unsupported):
        decode_image(JPEG[:start_of_frame] + frame + JPEG[start_of_frame:], SPEC)


def with_hidden_frame(marker: bytes, real: bytes, shown: bytes) -> bytes:
    """A JPEG that is `real` to libjpeg, and `shown` to a reader that takes the bytes after `marker` for a length."""
    head = shown[3 : shown.index(b"\xff\xda") + 14]
    # The reader goes on at the low byte of this length, which is the first byte of a marker to it.
    length = 2 + len(head) | 0xFF
    covered = b"\xff\xfe" + struct.pack(">H", 65529) + bytes(65527)
    return b"\xff\xd8" + marker + covered + b"\xff\xfe" + struct.pack(">H", length) + head.ljust(length - 2) + real[2:]


@pytest.mark.parametrize("marker", [b"\xff\xd0", b"\xff\x01"])
def test_a_jpeg_cannot_hide_a_larger_one_behind_a_marker_without_a_length(monkeypatch, marker):
    body = with_hidden_frame(marker, SCANS, JPEG)
    assert simplejpeg.decode_jpeg_header(body)[:2] == (800, 800)
    monkeypatch.setattr(simplejpeg, "decode_jpeg", lambda *_, **__: pytest.fail("must not be called"))
    with pytest.raises(Malformed):
        decode_image(body, SPEC)


@pytest.mark.parametrize(
    ("offset", "value"),
    [
        # Their coefficients would be counted once, and libjpeg would keep them three times.
        pytest.param(10, 1, id="of the same id"),
        pytest.param(11, 0, id="without samples"),
    ],
)
def test_a_jpeg_of_impossible_components_is_broken(monkeypatch, offset, value):
    body, start_of_frame = bytearray(SCANS), SCANS.index(b"\xff\xc2")
    for component in range(3):
        body[start_of_frame + offset + 3 * component] = value
    monkeypatch.setattr(simplejpeg, "decode_jpeg", lambda *_, **__: pytest.fail("must not be called"))
    with pytest.raises(Malformed):
        decode_image(bytes(body), SPEC)


def test_pillow_writes_no_warnings_about_pictures():
    tags = b"".join(struct.pack(">HHII", tag, 2, 2**31, 8) for tag in range(100))
    exif = b"Exif\0\0MM\0*\0\0\0\x08" + struct.pack(">H", 100) + tags
    body = encoded(Image.fromarray(PICTURE).convert("CMYK"), "JPEG")
    body = body[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + body[2:]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        setup_pillow()
        decode_image(body, SPEC)
    assert caught == []


@pytest.mark.parametrize("count", [2, 1001])
def test_a_jpeg_of_segments_is_not_followed_for_long(count):
    body = JPEG[:2] + b"\xff\xfe\0\x04ab" * count + JPEG[2:]
    if count == 2:
        assert distance(decode_image(body, SPEC), decode_image(JPEG, SPEC)) == 0
    else:
        with pytest.raises(TooLarge):
            decode_image(body, SPEC)


def test_bytes_between_segments_are_damage():
    with pytest.raises(Malformed):
        decode_image(JPEG[:20] + b"\0\0" + JPEG[20:], SPEC)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


NOTHING = zlib.compress(bytes(900_000))


def with_chunks(*chunks: bytes) -> bytes:
    """The picture with extra chunks before its data."""
    at = PNG.index(b"IDAT") - 4
    return PNG[:at] + b"".join(chunks) + PNG[at:]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(with_chunks(*[chunk(b"zTXt", b"k%d\0\0" % i + NOTHING) for i in range(80)]), id="texts"),
        pytest.param(with_chunks(chunk(b"iCCP", b"p\0\0" + zlib.compress(bytes(50_000_000)))), id="a profile"),
        pytest.param(with_chunks(chunk(b"iCCP", b"p\0\0no zlib")), id="a broken profile"),
        pytest.param(with_chunks(chunk(b"acTL", struct.pack(">II", 2**31 - 1, 0))), id="an animation"),
        pytest.param(with_chunks(*[chunk(b"abCd", b"")] * 5000), id="unknown chunks"),
        pytest.param(with_chunks(*[chunk(b"IDAT", b"")] * 5000), id="empty data"),
    ],
)
def test_what_a_png_holds_beside_its_picture_is_not_unpacked(body):
    assert distance(decode_image(body, SPEC), decode_image(PNG, SPEC)) == 0


@pytest.mark.parametrize("kind", [b"IHDR", b"tEXt"])
def test_the_header_that_a_png_is_judged_by_is_the_one_it_is_decoded_by(monkeypatch, kind):
    grey = PNG[16:24] + b"\x08\0\0\0\0"
    monkeypatch.setattr(Image, "open", lambda *_, **__: pytest.fail("must not be called"))
    with pytest.raises(Malformed, match="the PNG needs one header, in front"):
        decode_image(PNG[:8] + chunk(kind, grey) + PNG[8:], SPEC)


def test_a_png_of_chunks_is_not_followed_for_long():
    with pytest.raises(TooLarge):
        decode_image(with_chunks(*[chunk(b"IDAT", b"")] * 20_001), SPEC)


def test_a_png_of_many_parts_that_is_cut_short_is_broken():
    at = PNG.index(b"IDAT") - 4
    (length,) = struct.unpack_from(">I", PNG, at)
    parts = [chunk(b"IDAT", PNG[at + 8 + i : at + 9 + i]) for i in range(length)]
    body = PNG[:at] + b"".join(parts) + PNG[at + 12 + length :]
    assert distance(decode_image(body, SPEC), decode_image(PNG, SPEC)) == 0
    with pytest.raises(Malformed):
        decode_image(PNG[:at] + b"".join(parts[: length // 2])[:-3], SPEC)


def test_an_animation_is_its_first_frame():
    frames = [Image.fromarray(PICTURE), Image.fromarray(255 - PICTURE)]
    for kind in ("PNG", "WEBP"):
        body = encoded(frames[0], kind, save_all=True, append_images=frames[1:], lossless=True)
        assert distance(decode_image(body, SPEC), decode_image(PNG, SPEC)) <= 1


def test_a_narrow_picture_is_not_kept_for_the_sake_of_its_centre():
    crop = decode_image(encoded(np.zeros((40, 2000, 3), np.uint8), "PNG"), SPEC)
    assert crop.base is None or crop.base.nbytes <= 4 * crop.nbytes


@pytest.fixture(scope="module")
def tensor_handler(tmp_path_factory):
    return start(TensorHandler(), write_package(tmp_path_factory.mktemp("cost"), TinyDouble, ONE_INPUT))


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"[" + b"[]," * 600_000 + b"[]]", id="lists"),
        pytest.param(b"[" + b'{"":0},' * 500_001 + b"{}]", id="objects"),
        pytest.param(b"[" + b"0," * 1_000_001 + b"0]", id="numbers"),
    ],
)
def test_json_of_too_many_values_is_refused_before_it_is_parsed(tensor_handler, monkeypatch, body):
    monkeypatch.setattr("orjson.loads", lambda _: pytest.fail("must not be called"))
    (reply,) = ask(tensor_handler, body)
    assert reply.status == 413
    assert b"the JSON holds too many values" in reply.body


def test_requests_that_a_batch_has_no_time_for_are_told_so(tmp_path):
    handler = start(ImageHandler(), write_package(tmp_path, TinyClassifier, IMAGE))
    (before,) = ask(handler, PNG)
    handler._decoding_s = -1.0
    (late,) = ask(handler, PNG)
    assert (before.status, late.status) == (200, 503)
    assert late.json()["error"].startswith("overdue: ")


def test_memory_is_given_back_only_after_a_large_request(monkeypatch):
    trims = []
    monkeypatch.setattr(memory, "_trim", trims.append)
    memory.note_estimate(1_000_000)
    assert not memory.release_freed()
    memory.note_estimate(100_000_000)
    memory.note_estimate(1_000_000)
    assert memory.release_freed()
    assert not memory.release_freed()
    assert trims == [0]


def test_a_body_is_opened_as_what_it_begins_with():
    tiff = io.BytesIO()
    Image.fromarray(PICTURE).save(tiff, "TIFF")
    for start_bytes in (b"\x89PNG\r\n\x1a\n", b"RIFF\0\0\0\0WEBP", b"\xff\xd8\xff\xe0"):
        with pytest.raises((Malformed, TooLarge)):
            decode_image(start_bytes + tiff.getvalue(), SPEC)
