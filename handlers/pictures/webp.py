"""WebP: its declared size. Pillow's plugin takes memory for the canvas when it opens a file."""

import struct

# Two canvases of the decoder, the frame as it hands it out, and Pillow's picture; the frame is gone when pixels are
# made of the picture, a byte or three each.
PIXEL_BYTES = 15


def declared_size(body: bytes | bytearray) -> tuple[int, int]:
    """Height and width of the canvas."""
    chunk = bytes(body[12:16])
    if chunk == b"VP8X":
        return 1 + int.from_bytes(body[27:30], "little"), 1 + int.from_bytes(body[24:27], "little")
    if chunk == b"VP8L":
        bits = int.from_bytes(body[21:25], "little")
        return 1 + (bits >> 14 & 0x3FFF), 1 + (bits & 0x3FFF)
    width, height = struct.unpack_from("<HH", body, 26)
    return height & 0x3FFF, width & 0x3FFF
