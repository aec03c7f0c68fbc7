"""TIFF: reads the directory of its first picture, and makes a new one with nothing but what describes the pixels.

A directory may hold thousands of tags, others of its kind, and pieces that all lie on the same bytes; Pillow and
libtiff follow all of them. What libtiff reads by other libraries (JPEG, fax, LZMA …) is refused."""

import struct
from dataclasses import dataclass
from typing import ClassVar

from marina.handlers.pictures.header import Header
from marina.handlers.validation import Malformed, TooLarge, Unsupported

_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _COLOURS, _ORIENTATION = 256, 257, 258, 259, 262, 274
_STRIP_BYTES, _SAMPLES, _ROWS, _PLANES = 279, 277, 278, 284
_TILE_WIDTH, _TILE_HEIGHT, _TILE_BYTES, _FORMAT = 322, 323, 325, 339
# Also the offsets of strips and tiles, the order of bits, predictor, palette and the meaning of further samples.
_PIXEL_TAGS = {_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _COLOURS, 266, 273, _SAMPLES, _ROWS, _STRIP_BYTES, _PLANES}
_PIXEL_TAGS |= {317, 320, _TILE_WIDTH, _TILE_HEIGHT, 324, _TILE_BYTES, 338, _FORMAT}
_MAX_TAGS, _MAX_TAG_BYTES = 1000, 600_000
_ENTRY_BYTES = 12
# Bytes, 16-bit and 32-bit whole numbers.
_KINDS = {1: "B", 3: "H", 4: "I"}
_NOT_COMPRESSED = 1
# LZW, deflate twice, and PackBits.
_COMPRESSIONS = {_NOT_COMPRESSED, 5, 8, 32946, 32773}
_BLACK_IS_LARGE, _PALETTE, _MAX_COLOURS = 0, 3, 5
_COLOUR_KINDS = {_BLACK_IS_LARGE, 1, 2, _PALETTE, _MAX_COLOURS}
_ALLOWED = "whole numbers of up to 16 bits, all in one plane, not compressed or by LZW, deflate or PackBits"


@dataclass(frozen=True)
class _Directory:
    order: str
    body: bytes | bytearray
    entries: dict[int, bytes]
    """The tags that describe the pixels, as they are in the file."""

    none: ClassVar[tuple[int, ...]] = ()

    def values(self, tag: int, default: tuple[int, ...] = none) -> tuple[int, ...]:
        entry = self.entries.get(tag)
        if entry is None:
            return default
        kind, count = struct.unpack_from(f"{self.order}HI", entry, 2)
        form = f"{self.order}{count}{_KINDS[kind]}"
        if struct.calcsize(form) <= 4:
            return struct.unpack_from(form, entry, 8)
        (at,) = struct.unpack_from(f"{self.order}I", entry, 8)
        return struct.unpack_from(form, self.body, at)

    def value(self, tag: int, default: int | None = None) -> int:
        values = self.values(tag, () if default is None else (default,))
        if len(values) != 1:
            raise ValueError(f"tag {tag}")
        return values[0]


def read_header(body: bytes | bytearray) -> Header:
    directory = _read(body)
    value = directory.value
    height, width, samples = value(_HEIGHT), value(_WIDTH), value(_SAMPLES, 1)
    bits, colours, compression = directory.values(_BITS, (1,)), value(_COLOURS), value(_COMPRESSION, 1)
    known = colours in _COLOUR_KINDS and compression in _COMPRESSIONS and len({*bits}) == 1 and samples <= 4
    formats = {*directory.values(_FORMAT, (1,))}
    deepest = 8 if colours in (_BLACK_IS_LARGE, _PALETTE) else 16
    if not known or bits[0] > deepest or formats != {1} or value(_PLANES, 1) != 1:
        raise Unsupported("this kind of TIFF is not supported", field="image", allowed=_ALLOWED)
    if sum(directory.values(_STRIP_BYTES)) + sum(directory.values(_TILE_BYTES)) > len(body):
        raise Malformed("the strips of the TIFF are longer than the file", field="image", allowed="a complete file")
    in_row = min(value(_TILE_WIDTH, width), 2**20) * samples * bits[0] / 8
    piece = in_row * min(value(_TILE_HEIGHT, min(value(_ROWS, height), height)), 2**20)
    pixel_bytes = 4 if samples > 1 else 2 if bits[0] == 16 else 1
    (turned,) = directory.values(_ORIENTATION, (1,))
    return Header(height, width, pixel_bytes, int(piece), turned if 1 <= turned <= 8 else 1)


def with_pixels_only(body: bytes | bytearray) -> bytes:
    """The file with a directory of one picture, at its end, which names only what describes the pixels."""
    directory = _read(body)
    entries = [entry for tag, entry in sorted(directory.entries.items()) if tag in _PIXEL_TAGS]
    end = len(body) + len(body) % 2
    head = bytes(body[:4]) + struct.pack(f"{directory.order}I", end)
    count = struct.pack(f"{directory.order}H", len(entries))
    return b"".join((head, memoryview(body)[8:], bytes(end - len(body)), count, *entries, bytes(4)))


def _read(body: bytes | bytearray) -> _Directory:
    order = "<" if body[:2] == b"II" else ">"
    (start,) = struct.unpack_from(f"{order}I", body, 4)
    (count,) = struct.unpack_from(f"{order}H", body, start)
    if count > _MAX_TAGS:
        raise TooLarge("the TIFF has too many tags", field="image", got=count, allowed=f"at most {_MAX_TAGS}")
    entries, described_bytes = dict[int, bytes](), 0
    for at in range(start + 2, start + 2 + count * _ENTRY_BYTES, _ENTRY_BYTES):
        entry = bytes(body[at : at + _ENTRY_BYTES])
        tag, kind, values = struct.unpack_from(f"{order}HHI", entry)
        if tag in _PIXEL_TAGS or tag == _ORIENTATION:
            entries[tag] = entry
            described_bytes += values * struct.calcsize(f"={_KINDS[kind]}")
    if described_bytes > _MAX_TAG_BYTES:
        raise TooLarge("the TIFF has too many pieces", field="image", allowed="fewer strips or tiles")
    return _Directory(order, body, entries)
