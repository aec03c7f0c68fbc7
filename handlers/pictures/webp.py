"""WebP: reads its declared size, because Pillow's plugin allocates the canvas as soon as it opens a file."""

import struct

from marina.handlers.pictures.header import Header

# Bytes per pixel at the peak: the decoder's two canvases, the frame that it returns, and Pillow's picture. The frame is
# freed before the array is made, which takes one or three bytes per pixel.
_PIXEL_BYTES = 15


def read_header(body: bytes | bytearray) -> Header:
    height, width = _canvas(body)
    return Header(height, width, _PIXEL_BYTES)


def _canvas(body: bytes | bytearray) -> tuple[int, int]:
    """Its height and width."""
    chunk = bytes(body[12:16])
    if chunk == b"VP8X":
        return 1 + int.from_bytes(body[27:30], "little"), 1 + int.from_bytes(body[24:27], "little")
    if chunk == b"VP8L":
        bits = int.from_bytes(body[21:25], "little")
        return 1 + (bits >> 14 & 0x3FFF), 1 + (bits & 0x3FFF)
    width, height = struct.unpack_from("<HH", body, 26)
    return height & 0x3FFF, width & 0x3FFF
