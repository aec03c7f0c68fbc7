"""BMP: reads its header. What is compressed is refused: Pillow unpacks that in Python, a byte at a time."""

import struct

from marina.handlers.pictures.header import Header
from marina.handlers.validation import Unsupported

# The lengths of its header in the versions of the format.
HEADER_LENGTHS = (12, 40, 52, 56, 64, 108, 124)
_OLDEST = 12
_RAW, _BIT_FIELDS = 0, 3
_MAX_PALETTE_BITS = 8


def read_header(body: bytes | bytearray) -> Header:
    if body[14] == _OLDEST:
        width, height, _, bits = struct.unpack_from("<HHHH", body, 18)
    else:
        width, height, _, bits, compression = struct.unpack_from("<iiHHI", body, 18)
        if compression not in (_RAW, _BIT_FIELDS):
            raise Unsupported("this BMP is compressed", field="image", allowed="BMP without compression, or PNG")
    # Rows from top to bottom have a negative height.
    return Header(abs(height), width, 1 if bits <= _MAX_PALETTE_BITS else 4)
