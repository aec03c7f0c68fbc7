"""GIF: finds its first frame, the only one that Pillow gets.

A frame may be larger than the picture, and comments and other extensions of any size may come before it; Pillow makes
room for both when it opens a file."""

import struct

from marina.handlers.pictures.header import Header
from marina.handlers.validation import Malformed, TooLarge

# Of the palette, the pixels, and the canvas that a smaller frame is put on.
_PIXEL_BYTES = 2
_SCREEN_BYTES = 13
_EXTENSION, _FRAME, _CONTROL = 0x21, 0x2C, 0xF9
_FRAME_BYTES, _TRANSPARENT = 10, 1
# An encoder writes a block for each 255 bytes of a comment or a profile.
_MAX_BLOCKS = 50_000


def read_header(body: bytes | bytearray) -> Header:
    width, height = struct.unpack_from("<HH", body, 6)
    return Header(height, width, _PIXEL_BYTES)


def first_frame(body: bytes | bytearray) -> bytes:
    """The file without what comes before its first frame. ValueError, IndexError or struct.error if it is broken."""
    at = start = _SCREEN_BYTES + _palette_bytes(body[10])
    control, blocks = b"", 0
    while body[at] == _EXTENSION:
        if body[at + 1] == _CONTROL:
            _, transparent = struct.unpack_from("<HB", body, at + 4)
            # How a later frame replaces this one is no matter.
            control = bytes((_EXTENSION, _CONTROL, 4, body[at + 3] & _TRANSPARENT, 0, 0, transparent, 0))
        at += 2
        while length := body[at]:
            at += 1 + length
            blocks += 1
            if blocks > _MAX_BLOCKS:
                raise TooLarge("the GIF has too much before its picture", field="image", allowed="fewer extensions")
        at += 1
    if body[at] != _FRAME:
        raise ValueError("no frame")
    _check_inside(body, at)
    return b"".join((memoryview(body)[:start], control, memoryview(body)[at:]))


def _check_inside(body: bytes | bytearray, at: int) -> None:
    left, top, width, height = struct.unpack_from("<HHHH", body, at + 1)
    across, down = struct.unpack_from("<HH", body, 6)
    if left + width > across or top + height > down or not width or not height:
        got = f"{width}x{height} pixels at {left},{top} of {across}x{down}"
        raise Malformed("the first frame of the GIF does not lie in its picture", field="image", got=got)


def _palette_bytes(flags: int) -> int:
    """The length of the palette that these flags announce."""
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0
