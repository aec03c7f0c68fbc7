"""PNG: reads its header, and strips everything except the picture.

Texts, profiles and the frames of an animation are compressed, and Pillow decompresses them when it opens a file;
thousands of chunks cost it more than the pixels. So Pillow gets only the picture."""

import struct
import zlib

from marina.handlers.pictures.header import Header
from marina.handlers.validation import Malformed, TooLarge

_SIGNATURE = 8
_PICTURE = {b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND", b"eXIf"}
# Encoders write chunks of 8 kB and more.
_MAX_CHUNKS = 20_000
_MANY_PARTS = 64
_GREY, _PALETTE = 0, 3


def read_header(body: bytes | bytearray) -> Header:
    width, height, depth, colour = struct.unpack_from(">IIBB", body, 16)
    if colour in (_GREY, _PALETTE):
        return Header(height, width, 2 if depth == 16 else 1)
    return Header(height, width, 4)


def without_extras(body: bytes | bytearray) -> bytes | bytearray:
    """The file without any chunks that are not part of the picture. Returns the same body if it has no others, up to
    the end of the picture or the first damage."""
    view, chunks = memoryview(body), list[tuple[bytes, int, int]]()
    at, parts, others = _SIGNATURE, 0, False
    while at + 12 <= len(body):
        (length,), kind = struct.unpack_from(">I", body, at), bytes(view[at + 4 : at + 8])
        # Of several headers Pillow takes the last, and the cost was estimated from the first.
        if (kind == b"IHDR") == bool(chunks):
            raise Malformed("the PNG needs one header, in front", field="image", allowed="a complete file")
        chunks.append((kind, at, at + 12 + length))
        if len(chunks) > _MAX_CHUNKS:
            raise TooLarge("the PNG has too many chunks", field="image", allowed=f"at most {_MAX_CHUNKS}")
        at += 12 + length
        parts += kind == b"IDAT"
        others |= kind not in _PICTURE
        if kind == b"IEND":
            break
    if not others and parts <= _MANY_PARTS:
        return body
    return _assemble(view, chunks)


def _assemble(view: memoryview, chunks: list[tuple[bytes, int, int]]) -> bytes:
    """The picture's chunks, with all IDAT data in one chunk at the place of the first. A last chunk that is cut short
    stays cut short."""
    pieces: list[bytes | memoryview] = [view[:_SIGNATURE]]
    data = b"".join(view[start + 8 : end - 4] for kind, start, end in chunks if kind == b"IDAT")
    whole = all(end <= len(view) for kind, _, end in chunks if kind == b"IDAT")
    is_first = True
    for kind, start, end in chunks:
        if kind == b"IDAT":
            if is_first:
                is_first = False
                pieces += [
                    struct.pack(">I", len(data)),
                    kind,
                    data,
                    struct.pack(">I", zlib.crc32(data, zlib.crc32(kind))),
                ]
        elif kind in _PICTURE and (whole or kind != b"IEND"):
            pieces.append(view[start:end])
    return b"".join(pieces)
