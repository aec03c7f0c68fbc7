"""The pixels of decoded images, compared with torchvision's at every scale, orientation and kind of sample."""

import io
import struct

import numpy as np
import pytest
from fakes import MEAN, RESIZE, SIDE, STD, TOP_K
from pictures import GREY, JPEG, PICTURE, PNG, SPEC, distance, encoded, reference, smooth
from PIL import Image

from marina.handlers.pictures import decode as pixels
from marina.handlers.pictures import decode_image, resize_and_crop
from marina.handlers.record import ImageSpec
from marina.handlers.validation import Malformed


@pytest.mark.parametrize(
    ("shape", "interpolation"),
    [
        pytest.param((90, 70), "bilinear", id="portrait"),
        pytest.param((70, 91), "bilinear", id="landscape"),
        pytest.param((20, 25), "bilinear", id="enlarged"),
        pytest.param((36, 36), "bilinear", id="as it is"),
        pytest.param((400, 300), "bicubic", id="bicubic"),
    ],
)
def test_resize_and_crop_equals_torchvision_to_one_level(shape, interpolation):
    spec = ImageSpec(SIDE, SIDE, RESIZE, 3, MEAN, STD, interpolation, TOP_K, 1_000_000)
    noise = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    assert distance(resize_and_crop(noise, spec), reference(noise, spec)) <= 1


def test_a_resized_picture_keeps_its_channels_together():
    # Planar pixels would be copied into the batch one value at a time, three times as slowly.
    resized = resize_and_crop(np.zeros((400, 300, 3), np.uint8), SPEC)
    assert resized.strides[1:] == (3, 1)


def test_scaled_jpeg_decoding_stays_close_to_the_full_decode():
    picture = smooth(400, 301)
    body = encoded(picture, "JPEG", quality=95)
    full = np.array(Image.open(io.BytesIO(body)))
    assert distance(decode_image(body, SPEC), reference(full)) <= 3


@pytest.mark.parametrize(
    ("shape", "decoded"),
    [
        pytest.param((720, 720), (360, 360), id="half, where three eighths would do"),
        pytest.param((400, 500), (400, 500), id="all, where five eighths would do"),
        pytest.param((929, 4000), (233, 1000), id="a quarter, rounded up"),
        pytest.param((2000, 1856), (250, 232), id="an eighth"),
        pytest.param((100, 90), (100, 90), id="smaller than its target"),
    ],
)
def test_jpeg_is_decoded_at_a_scale_that_is_fast(shape, decoded, monkeypatch):
    sizes = []
    monkeypatch.setattr(pixels, "resize_and_crop", lambda decoded, _: sizes.append(decoded.shape[:2]))
    spec = ImageSpec(224, 224, 232, 3, MEAN, STD, "bilinear", TOP_K, 10_000_000)
    decode_image(encoded(np.zeros((*shape, 3), np.uint8), "JPEG"), spec)
    assert sizes == [decoded]


def test_crop_that_is_not_square_falls_on_the_centre():
    spec = ImageSpec(20, 30, 40, 3, MEAN, STD, "bilinear", TOP_K, 1_000_000)
    assert decode_image(PNG, spec).shape == (20, 30, 3)
    assert distance(decode_image(PNG, spec), reference(PICTURE, spec)) <= 1


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_exif_orientation_is_applied(kind, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"quality": 95} if kind == "JPEG" else {"lossless": True} if kind == "WEBP" else {}
    body = encoded(PICTURE, kind, exif=exif.tobytes(), **options)
    upright = Image.fromarray(PICTURE)
    turn = [None, 0, 3, 1, 5, 4, 6, 2][orientation - 1]
    if turn is not None:
        upright = upright.transpose(Image.Transpose(turn))
    assert distance(decode_image(body, SPEC), reference(np.array(upright))) <= 4


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 5), (5, 1), (1, 64)])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_pictures_of_one_pixel_across_are_turned_too(kind, height, width, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    body = encoded(smooth(height, width), kind, exif=exif.tobytes())
    assert decode_image(body, SPEC).shape == (SIDE, SIDE, 3)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_orientation_of_a_tiff_is_applied(orientation):
    body = encoded(PICTURE, "TIFF", tiffinfo={0x0112: orientation})
    exif = Image.Exif()
    exif[0x0112] = orientation
    turned = encoded(PICTURE, "PNG", exif=exif.tobytes())
    assert distance(decode_image(body, SPEC), decode_image(turned, SPEC)) == 0


FRAMES = [Image.fromarray(PICTURE).quantize(), Image.fromarray(255 - PICTURE).quantize()]


@pytest.mark.parametrize(
    ("kind", "picture", "options"),
    [
        pytest.param("BMP", Image.fromarray(PICTURE), {}, id="bmp"),
        pytest.param("BMP", FRAMES[0], {}, id="bmp with a palette"),
        pytest.param("GIF", FRAMES[0], {"interlace": False, "comment": "x" * 2000}, id="gif"),
        pytest.param("GIF", FRAMES[0], {"save_all": True, "append_images": FRAMES[1:], "loop": 0}, id="animation"),
        pytest.param("TIFF", Image.fromarray(PICTURE), {"description": "a title"}, id="tiff"),
        pytest.param("TIFF", Image.fromarray(PICTURE), {"compression": "tiff_lzw"}, id="tiff by lzw"),
        pytest.param("TIFF", Image.fromarray(PICTURE), {"compression": "tiff_adobe_deflate"}, id="tiff by deflate"),
        pytest.param("TIFF", Image.fromarray(PICTURE).convert("CMYK"), {"compression": "packbits"}, id="tiff of inks"),
        pytest.param("TIFF", Image.fromarray(PICTURE).convert("L"), {"big_tiff": False}, id="grey tiff"),
        pytest.param("TIFF", FRAMES[0], {"save_all": True, "append_images": FRAMES[1:]}, id="pages"),
        pytest.param("TIFF", Image.fromarray(PICTURE).convert("1"), {}, id="black and white"),
    ],
)
def test_a_picture_of_an_older_format_is_its_first_frame(kind, picture, options):
    body = encoded(picture, kind, **options)
    expected = encoded(Image.open(io.BytesIO(body)).convert("RGB"), "PNG")
    assert distance(decode_image(body, SPEC), decode_image(expected, SPEC)) == 0
    for length in (20, len(body) // 4):
        with pytest.raises(Malformed):
            decode_image(body[:length], SPEC)


def test_broken_exif_leaves_the_picture_as_it_is():
    marker = b"\xff\xe1" + struct.pack(">H", 20) + b"Exif\0\0" + b"MM\0\x2a\xff\xff\xff\xff" + b"\0" * 4
    assert distance(decode_image(JPEG[:2] + marker + JPEG[2:], SPEC), decode_image(JPEG, SPEC)) == 0


def test_exif_is_found_behind_another_segment_and_fill_bytes():
    exif = Image.Exif()
    exif[0x0112] = 3
    turned = encoded(PICTURE, "JPEG", quality=95, exif=exif.tobytes())
    comment = b"\xff\xfe" + struct.pack(">H", 12) + b"Exif\0\0MM\0\x2a"
    body = turned[:2] + comment + b"\xff\xff" + turned[2:]
    assert distance(decode_image(body, SPEC), decode_image(turned, SPEC)) == 0
    assert distance(decode_image(body, SPEC), decode_image(encoded(PICTURE, "JPEG", quality=95), SPEC)) > 0


def test_transparent_pixels_lie_on_white():
    hidden = np.dstack([PICTURE, np.zeros(PICTURE.shape[:2], np.uint8)])
    assert decode_image(encoded(hidden, "PNG"), SPEC).min() == 255


def test_16_bit_grey_keeps_its_levels():
    grey = smooth(40, 40, 1)[:, :, 0]
    for kind in ("PNG", "TIFF"):
        pixels = decode_image(encoded(grey.astype(np.uint16) * 257, kind), GREY)
        assert distance(pixels, reference(grey[:, :, np.newaxis], GREY)) <= 1


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_grey_model_takes_coloured_pictures(kind):
    pixels = decode_image(encoded(PICTURE, kind, quality=95), GREY)
    grey = np.array(Image.fromarray(PICTURE).convert("L"))[:, :, np.newaxis]
    assert distance(pixels, reference(grey, GREY)) <= 4
