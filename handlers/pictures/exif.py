"""The orientation that a camera notes beside the pixels."""

import struct

import numpy as np

from handlers.arrays import Array

EXIF = b"Exif\0\0"
_ORIENTATION = 0x0112


def orientation(exif: bytes) -> int:
    """The orientation in the first directory of an EXIF block, 1 where there is none. Pillow's reader warns about
    broken blocks, once per request, and takes longer than the whole decoding."""
    tiff = exif.removeprefix(EXIF)
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


def orient(pixels: Array, turned: int) -> Array:
    """Orientations 5 to 8 swap the axes; then rows and columns may run backwards."""
    if turned == 1:
        return pixels
    if turned >= 5:
        pixels = pixels.transpose(1, 0, 2)
    if turned in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if turned in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    # torch takes no negative strides. `ascontiguousarray` leaves them on sides of one pixel, where it sees no matter.
    return np.array(pixels, order="C")
