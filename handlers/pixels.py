"""Image bytes to the uint8 pixels of the model's size: decode, orient, resize the shorter side, crop the centre.

As torchvision's evaluation transform (Resize, CenterCrop, with antialiasing), equal to rounding, with these decisions:
- A large JPEG is decoded at an eighth, a quarter or half of its size where that keeps both sides at or above the resize
  target, as its DCT allows. It differs from a full decode by one level in the mean.
- EXIF orientation is applied: the model sees the picture that a person sees. torchvision's decoders ignore it by
  default.
- A JPEG with any damage is refused, also where libjpeg would carry on with grey or smeared blocks.
- Transparent pixels lie on white; 16-bit samples keep their high byte; of an animation the first frame counts.
"""

import io
import struct
from typing import Any

import numpy as np
import simplejpeg
import torch
from PIL import Image

from handlers.arrays import Array
from handlers.record import ImageSpec
from handlers.validation import Malformed, TooLarge, Unsupported, check_pixels

# The resized picture is bounded by this ratio times the square of the resize target.
MAX_RATIO = 64
# A progressive file may repeat empty scans, each of which costs a pass over all pixels; encoders write about ten.
MAX_SCANS = 100
# In eighths. libjpeg-turbo has vector code for these alone: three take it longer than four, five to seven longer than
# all of the picture (`make bench-parts`).
_FAST_SCALES = (1, 2, 4)
_MODES = {"bilinear": "bilinear", "bicubic": "bicubic", "nearest": "nearest-exact"}
_EXIF = b"Exif\0\0"
_ORIENTATION = 0x0112
_APP1, _START_OF_SCAN, _SEGMENTS_END = b"\xe1", b"\xda", 1 << 16
# What Pillow's plugins raise for broken files. Their own limits on size are below ours or off, see `setup_pillow`.
_PILLOW_ERRORS = (
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    TypeError,
    KeyError,
    IndexError,
    OverflowError,
    struct.error,
)


def setup_pillow() -> None:
    """Pillow's own limit warns or raises at a size that is not ours: `check_pixels` comes first and is the only one."""
    Image.MAX_IMAGE_PIXELS = None


def image_format(body: bytes | bytearray) -> str | None:
    if body[:3] == b"\xff\xd8\xff":
        return "JPEG"
    if body[:8] == b"\x89PNG\r\n\x1a\n":
        return "PNG"
    if body[:4] == b"RIFF" and body[8:12] == b"WEBP":
        return "WEBP"
    return None


def decode_image(body: bytes | bytearray, spec: ImageSpec) -> Array:
    """uint8 pixels [height, width, channels] of the model's size; a view that need not be contiguous."""
    kind = image_format(body)
    if kind is None:
        raise Unsupported("the body is not an image of a known format", field="image", allowed="JPEG, PNG, WebP")
    try:
        pixels = _decode_jpeg(body, spec) if kind == "JPEG" else _decode_pillow(body, kind, spec)
    except _PILLOW_ERRORS as err:
        raise Malformed(f"the {kind} is broken or cut short", field="image", allowed="a complete file") from err
    return resize_and_crop(pixels, spec)


def resize_and_crop(pixels: Array, spec: ImageSpec) -> Array:
    height, width = pixels.shape[:2]
    short = min(height, width)
    # Integer and rounding rules are torchvision's, so that the crop falls on the same pixels.
    new_height, new_width = int(spec.resize * height / short), int(spec.resize * width / short)
    if (new_height, new_width) != (height, width):
        # uint8 in channels-last layout: torch has vectorised kernels for it, 1.7 to 3 times as fast as Pillow.
        # The batch comes first: `permute(2, 0, 1)[None]` has other strides, and the result would be planar.
        batch = torch.from_numpy(pixels).unsqueeze(0).permute(0, 3, 1, 2)
        mode = _MODES[spec.interpolation]
        antialias = mode != "nearest-exact"
        resized = torch.nn.functional.interpolate(batch, (new_height, new_width), mode=mode, antialias=antialias)
        pixels = resized[0].permute(1, 2, 0).numpy()
    top, left = round((new_height - spec.height) / 2), round((new_width - spec.width) / 2)
    return pixels[top : top + spec.height, left : left + spec.width]


def _decode_jpeg(body: bytes | bytearray, spec: ImageSpec) -> Array:
    scans = _count_scans(body)
    if scans > MAX_SCANS:
        raise TooLarge("the JPEG has too many scans", field="image", got=scans, allowed=f"at most {MAX_SCANS}")
    height, width, colours, _ = simplejpeg.decode_jpeg_header(body, strict=False)
    check_pixels(height, width, max_pixels=spec.max_pixels, max_ratio=MAX_RATIO)
    if colours not in ("YCbCr", "Gray", "RGB"):  # CMYK, YCCK: Pillow knows Adobe's inverted inks
        return _decode_pillow(body, "JPEG", spec)
    # strict: a file that is cut short is an error; libjpeg would fill the rest with grey.
    least_height, least_width = _decoded_size(height, width, spec.resize)
    pixels: Array = simplejpeg.decode_jpeg(
        body,
        "GRAY" if spec.channels == 1 else "RGB",
        min_height=least_height,
        min_width=least_width,
        strict=True,
    )
    return _orient(pixels, _jpeg_orientation(body))


def _decoded_size(height: int, width: int, target: int) -> tuple[int, int]:
    """The smallest that is decoded fast and has no side below the target."""
    for eighths in _FAST_SCALES:
        small = -(-height * eighths // 8), -(-width * eighths // 8)
        if min(small) >= target:
            return small
    return height, width


def _count_scans(body: bytes | bytearray) -> int:
    """How often the marker that starts a scan occurs; numpy finds it six times as fast as `bytes.count`."""
    values = np.frombuffer(body, np.uint8)
    return int(np.count_nonzero((values[:-1] == 0xFF) & (values[1:] == 0xDA)))


def _jpeg_orientation(body: bytes | bytearray) -> int:
    """From the EXIF segment, which is one of the first; a file of nothing but segments is not followed for long."""
    at = 2
    while at < _SEGMENTS_END and body[at : at + 1] == b"\xff":
        kind, length = body[at + 1 : at + 2], int.from_bytes(body[at + 2 : at + 4], "big")
        if kind == _APP1 and body[at + 4 : at + 10] == _EXIF:
            return _orientation(bytes(body[at + 4 : at + 2 + length]))
        if kind == _START_OF_SCAN:
            break
        # Any number of 0xff may stand before a marker.
        at += 1 if kind == b"\xff" else 2 + length
    return 1


def _orientation(exif: bytes) -> int:
    """The orientation in the first directory of an EXIF block, 1 where there is none. Pillow's reader warns about
    broken blocks, once per request, and takes longer than the whole decoding."""
    tiff = exif.removeprefix(_EXIF)
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    try:
        (start,) = struct.unpack_from(f"{order}I", tiff, 4)
        (count,) = struct.unpack_from(f"{order}H", tiff, start)
        for index in range(count):
            tag, _, _, value = struct.unpack_from(f"{order}HHIH", tiff, start + 2 + 12 * index)
            if tag == _ORIENTATION:
                return value if 1 <= value <= 8 else 1
    except struct.error:  # no byte order, or cut short: the pixels are good, only the note about them is not
        pass
    return 1


def _orient(pixels: Array, orientation: int) -> Array:
    """Views only. Orientations 5 to 8 swap the axes; then rows and columns may run backwards."""
    if orientation >= 5:
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    # torch takes no negative strides.
    return np.ascontiguousarray(pixels) if orientation != 1 else pixels


def _decode_pillow(body: bytes | bytearray, kind: str, spec: ImageSpec) -> Array:
    height, width = _declared_size(body, kind)
    check_pixels(height, width, max_pixels=spec.max_pixels, max_ratio=MAX_RATIO)
    with Image.open(io.BytesIO(body), formats=[kind]) as image:
        # Some formats say their size twice; what is decoded is this one.
        check_pixels(image.height, image.width, max_pixels=spec.max_pixels, max_ratio=MAX_RATIO)
        # np.array, not asarray: torch warns about memory that it may not write.
        pixels = np.array(_flatten(image, "L" if spec.channels == 1 else "RGB"))
        orientation = _orientation(image.info.get("exif", b""))
    return _orient(pixels if pixels.ndim == 3 else pixels[:, :, np.newaxis], orientation)


def _flatten(image: Image.Image, mode: str) -> Image.Image:
    if image.mode.startswith("I"):  # 16-bit grey, which convert() would cut off at 255
        samples: Any = np.asarray(image)
        return Image.fromarray((samples >> 8).clip(0, 255).astype(np.uint8)).convert(mode)
    if image.mode in ("LA", "PA", "RGBA", "RGBa", "La") or "transparency" in image.info:
        picture = image.convert("RGBA")
        white = Image.new("RGBA", picture.size, "white")
        return Image.alpha_composite(white, picture).convert(mode)
    return image.convert(mode)


def _declared_size(body: bytes | bytearray, kind: str) -> tuple[int, int]:
    """Height and width by the header alone: Pillow's WebP plugin takes memory for the canvas when it opens a file."""
    if kind == "JPEG":
        height, width, *_ = simplejpeg.decode_jpeg_header(body, strict=False)
        return height, width
    if kind == "PNG":
        width, height = struct.unpack_from(">II", body, 16)
        return height, width
    chunk = bytes(body[12:16])
    if chunk == b"VP8X":
        return 1 + int.from_bytes(body[27:30], "little"), 1 + int.from_bytes(body[24:27], "little")
    if chunk == b"VP8L":
        bits = int.from_bytes(body[21:25], "little")
        return 1 + (bits >> 14 & 0x3FFF), 1 + (bits & 0x3FFF)
    width, height = struct.unpack_from("<HH", body, 26)
    return height & 0x3FFF, width & 0x3FFF
