"""Pictures that Pillow decodes: to pixels a strip at a time, because each of its conversions is a whole new picture."""

import io
from typing import Any

import numpy as np
from PIL import Image

from handlers.arrays import Array
from handlers.pictures.exif import orient, orientation
from handlers.record import ImageSpec
from handlers.validation import Malformed

_STRIP_PIXELS = 1 << 18


def decode_by_pillow(
    body: bytes | bytearray, kind: str, spec: ImageSpec, *, declared: tuple[int, int], least: int | None = None
) -> Array:
    """The upright pixels; `declared` is the size that the cost was taken of. A JPEG is decoded at a fraction of its
    size that leaves no side below `least`."""
    pixels, turned = _decode(body, kind, spec, declared, least)
    # Not before the picture itself is gone.
    return orient(pixels, turned)


def _decode(
    body: bytes | bytearray, kind: str, spec: ImageSpec, declared: tuple[int, int], least: int | None
) -> tuple[Array, int]:
    with Image.open(io.BytesIO(body), formats=[kind]) as image:
        # Some formats say their size twice; what is decoded is this one.
        if (image.height, image.width) != declared:
            raise Malformed(f"the {kind} declares two sizes", field="image", got=f"{image.width}x{image.height} pixels")
        if least is not None:
            image.draft(image.mode, (least, least))
        image.load()
        pixels = _pixels(image, "L" if spec.channels == 1 else "RGB", spec.channels)
        return pixels, orientation(image.info.get("exif", b""))


def _pixels(image: Image.Image, mode: str, channels: int) -> Array:
    width, height = image.size
    rows = max(1, _STRIP_PIXELS // width)
    pixels = np.empty((height, width, channels), np.uint8)
    for top in range(0, height, rows):
        bottom = min(top + rows, height)
        strip = image if rows >= height else image.crop((0, top, width, bottom))
        pixels[top:bottom] = np.asarray(_flatten(strip, mode)).reshape(bottom - top, width, channels)
    return pixels


def _flatten(image: Image.Image, mode: str) -> Image.Image:
    if image.mode.startswith("I"):  # 16-bit grey, which convert() would cut off at 255
        samples: Any = np.asarray(image)
        return Image.fromarray((samples >> 8).clip(0, 255).astype(np.uint8)).convert(mode)
    if image.mode in ("LA", "PA", "RGBA", "RGBa", "La") or "transparency" in image.info:
        picture = image.convert("RGBA")
        white = Image.new("RGBA", picture.size, "white")
        return Image.alpha_composite(white, picture).convert(mode)
    return image.convert(mode)
