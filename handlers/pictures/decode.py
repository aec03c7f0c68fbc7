"""Turns image bytes into uint8 pixels of the model's size: decodes, orients, resizes the shorter side, crops the
centre.

The result equals that of torchvision's evaluation transform (Resize, CenterCrop, with antialiasing) up to rounding,
with these differences:
- A large JPEG is decoded at an eighth, a quarter or half of its size, as its DCT allows, if that keeps both sides at or
  above the resize target. On average this differs from a full decode by one level.
- EXIF orientation is applied, so that the model sees the picture as a person does. torchvision's decoders ignore it by
  default.
- A JPEG with any damage is refused, even if libjpeg would carry on with grey or smeared blocks.
- Transparent pixels are put on white, 16-bit samples keep their high byte, and of an animation the first frame counts.
"""

import struct
import warnings
from collections.abc import Callable
from dataclasses import replace

from PIL import Image

from marina.handlers.arrays import Array
from marina.handlers.pictures import bmp, gif, png, tiff, webp
from marina.handlers.pictures.cost import MAX_RATIO, DecodingCost, check_cost, resized_bytes
from marina.handlers.pictures.exif import orient
from marina.handlers.pictures.header import Header
from marina.handlers.pictures.jpeg import Frame, decode_jpeg, decoded_size, read_frame, scan_cost, upright_size
from marina.handlers.pictures.pillow_decoder import decode_by_pillow
from marina.handlers.pictures.resize import Placement, place, resize_and_crop
from marina.handlers.record import ImageSpec
from marina.handlers.validation import Malformed, Unsupported, check_pixels

# The exceptions that Pillow's plugins raise for broken files. For its size limit see `setup_pillow`.
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
_CMYK_COMPONENTS = 4
_Body = bytes | bytearray
# How the header of a format is read, and what of a file Pillow gets.
_READERS: dict[str, tuple[Callable[[_Body], Header], Callable[[_Body], _Body]]] = {
    "BMP": (bmp.read_header, lambda body: body),
    "GIF": (gif.read_header, gif.first_frame),
    "PNG": (png.read_header, png.without_extras),
    "TIFF": (tiff.read_header, tiff.with_pixels_only),
    "WEBP": (webp.read_header, lambda body: body),
}


def setup_pillow() -> None:
    """Turns off Pillow's own size limit: `check_pixels` comes first and is the only limit. And its warnings: a single
    picture can cause thousands, each a line in the log and an entry that Python keeps."""
    Image.MAX_IMAGE_PIXELS = None
    warnings.filterwarnings("ignore", module=r"PIL\.")


def image_format(body: bytes | bytearray) -> str | None:
    if body[:3] == b"\xff\xd8\xff":
        return "JPEG"
    if body[:8] == b"\x89PNG\r\n\x1a\n":
        return "PNG"
    if body[:4] == b"RIFF" and body[8:12] == b"WEBP":
        return "WEBP"
    if body[:6] in (b"GIF87a", b"GIF89a"):
        return "GIF"
    if body[:4] in (b"II*\0", b"MM\0*"):
        return "TIFF"
    if body[:2] == b"BM" and int.from_bytes(body[14:18], "little") in bmp.HEADER_LENGTHS:
        return "BMP"
    return None


def decode_image(body: bytes | bytearray, spec: ImageSpec) -> Array:
    """Returns uint8 pixels [height, width, channels] of the model's size, as a view that need not be contiguous."""
    return decode_placed(body, spec)[0]


def decode_placed(body: bytes | bytearray, spec: ImageSpec) -> tuple[Array, Placement]:
    """The pixels as by `decode_image`, and where the picture lies in them."""
    kind, size = image_format(body), None
    try:
        if kind == "JPEG":
            frame = read_frame(body)
            pixels, size = _from_jpeg(body, frame, spec), upright_size(frame)
        elif kind is not None:
            pixels = _by_pillow(body, kind, spec)
        else:
            raise Unsupported(
                "the body is not an image of a known format",
                field="image",
                allowed="JPEG, PNG, WebP, GIF, TIFF, BMP",
            )
    except _PILLOW_ERRORS as err:
        raise Malformed(f"the {kind} is broken or cut short", field="image", allowed="a complete file") from err
    decoded = pixels.shape[0], pixels.shape[1]
    height, width = size or decoded
    return resize_and_crop(pixels, spec), replace(place(*decoded, spec), height=height, width=width)


def _from_jpeg(body: bytes | bytearray, frame: Frame, spec: ImageSpec) -> Array:
    check_pixels(frame.height, frame.width, max_pixels=spec.max_pixels, max_ratio=MAX_RATIO)
    # CMYK and YCCK go to Pillow, which knows about Adobe's inverted inks.
    if len(frame.samples) == _CMYK_COMPONENTS:
        return _from_cmyk(body, frame, spec)
    return decode_jpeg(body, frame, spec)


def _from_cmyk(body: bytes | bytearray, frame: Frame, spec: ImageSpec) -> Array:
    scans = scan_cost(body, frame)
    height, width = decoded_size(frame, spec)
    check_cost(DecodingCost(scans.memory_bytes + _memory(height, width, 4, spec), scans.visits), body, spec)
    declared = frame.height, frame.width
    return decode_by_pillow(body, "JPEG", spec, declared=declared, least=(height, width))


def _by_pillow(body: bytes | bytearray, kind: str, spec: ImageSpec) -> Array:
    read_header, for_pillow = _READERS[kind]
    header = read_header(body)
    check_pixels(header.height, header.width, max_pixels=spec.max_pixels, max_ratio=MAX_RATIO)
    memory_bytes = _memory(header.height, header.width, header.pixel_bytes, spec) + header.extra_bytes
    check_cost(DecodingCost(memory_bytes), body, spec)
    declared = header.height, header.width
    return orient(decode_by_pillow(for_pillow(body), kind, spec, declared=declared), header.orientation)


def _memory(height: int, width: int, pixel_bytes: int, spec: ImageSpec) -> int:
    """Memory for a picture as Pillow stores it, for the array of its pixels, and for scaling them."""
    return height * width * (pixel_bytes + spec.channels) + resized_bytes(height, width, spec)
