"""Reads the orientation that a camera records in EXIF, and applies it."""

import struct

import numpy as np

from marina.handlers.arrays import Array

EXIF = b"Exif\0\0"
_ORIENTATION = 0x0112
SIDEWAYS = range(5, 9)
"""The orientations of pictures whose height and width are swapped."""


def orientation(exif: bytes) -> int:
    """The orientation in the first directory of an EXIF block; 1 if there is none. Pillow's own reader would log a
    warning about each broken block, and takes longer than decoding the whole picture."""
    tiff = exif.removeprefix(EXIF)
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    try:
        (start,) = struct.unpack_from(f"{order}I", tiff, 4)
        (count,) = struct.unpack_from(f"{order}H", tiff, start)
        for index in range(count):
            tag, _, _, value = struct.unpack_from(f"{order}HHIH", tiff, start + 2 + 12 * index)
            if tag == _ORIENTATION:
                return value if 1 <= value <= 8 else 1
    except struct.error:  # no byte order, or cut short: only the EXIF block is broken, not the picture
        pass
    return 1


def orient(pixels: Array, exif_orientation: int) -> Array:
    """Turns pixels upright: orientations 5 to 8 swap the axes, and some reverse rows or columns."""
    if exif_orientation == 1:
        return pixels
    if exif_orientation in SIDEWAYS:
        pixels = pixels.transpose(1, 0, 2)
    if exif_orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if exif_orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    # torch does not accept negative strides, and `ascontiguousarray` keeps them on sides of one pixel.
    return np.array(pixels, order="C")
