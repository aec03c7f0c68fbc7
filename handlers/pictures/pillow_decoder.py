"""Decodes pictures with Pillow. They are converted to pixels in strips, because each of Pillow's conversions would
create a whole new picture."""

import io
from typing import Any

import numpy as np
from PIL import Image

from marina.handlers.arrays import Array
from marina.handlers.pictures.exif import orient, orientation
from marina.handlers.record import ImageSpec
from marina.handlers.validation import Malformed

_STRIP_PIXELS = 1 << 18


def decode_by_pillow(
    body: bytes | bytearray,
    kind: str,
    spec: ImageSpec,
    *,
    declared: tuple[int, int],
    least: tuple[int, int] | None = None,
) -> Array:
    """The upright pixels. `declared` is the height and width for which the cost was checked. A JPEG is decoded at a
    fraction of its size that leaves the height and width no lower than `least`."""
    pixels, exif_orientation = _decode(body, kind, spec, declared, least)
    # Done here, after Pillow's picture is freed, to save memory.
    return orient(pixels, exif_orientation)


def _decode(
    body: bytes | bytearray, kind: str, spec: ImageSpec, declared: tuple[int, int], least: tuple[int, int] | None
) -> tuple[Array, int]:
    with Image.open(io.BytesIO(body), formats=[kind]) as image:
        # Some formats declare their size twice, and Pillow decodes this one.
        if (image.height, image.width) != declared:
            raise Malformed(f"the {kind} declares two sizes", field="image", got=f"{image.width}x{image.height} pixels")
        if least is not None:
            image.draft(image.mode, least[::-1])
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
    if image.mode.startswith("I"):  # 16-bit grey, which convert() would clip at 255
        samples: Any = np.asarray(image)
        return Image.fromarray((samples >> 8).clip(0, 255).astype(np.uint8)).convert(mode)
    if image.mode in ("LA", "PA", "RGBA", "RGBa", "La") or "transparency" in image.info:
        picture = image.convert("RGBA")
        white = Image.new("RGBA", picture.size, "white")
        return Image.alpha_composite(white, picture).convert(mode)
    return image.convert(mode)
