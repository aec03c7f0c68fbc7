"""JPEG: reads its header, estimates the cost of its scans, and decodes it at a fraction of its size.

The markers are read up to the first scan, in the way libjpeg reads them. Anything that libjpeg would read differently
(bytes between segments, a second frame) is refused, so that the size and kind found here are the ones it decodes."""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import simplejpeg

from marina.handlers.arrays import Array
from marina.handlers.pictures.cost import DecodingCost, check_cost, resized_bytes
from marina.handlers.pictures.exif import EXIF, SIDEWAYS, orient, orientation
from marina.handlers.pictures.resize import place
from marina.handlers.record import ImageSpec
from marina.handlers.validation import TooLarge, Unsupported

# Encoders write about ten scans, and each costs a pass over the picture.
MAX_SCANS = 100
# Scales in eighths. libjpeg-turbo has vector code only for these: 3/8 takes longer than 4/8, and 5/8 to 7/8 take longer
# than the full size (`make bench-parts`).
FAST_SCALES = (1, 2, 4)
_APP1, _START_OF_SCAN = 0xE1, 0xDA
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
# Markers without a length. libjpeg goes on right after one, so what seems to be its length could hide a larger frame.
_WITHOUT_LENGTH = {0x00, 0x01, *range(0xD0, 0xDA)}
# Baseline, extended and progressive, with Huffman or arithmetic coding. The others are lossless or hierarchical.
_SUPPORTED, _PROGRESSIVE = {0xC0, 0xC1, 0xC2, 0xC9, 0xCA}, {0xC2, 0xCA}
# Cameras write about twenty segments; a colour profile may take 255.
_MAX_SEGMENTS = 1000
_COEFFICIENT_BYTES = 2


@dataclass(frozen=True)
class Frame:
    """The header of a JPEG."""

    height: int
    width: int
    samples: Mapping[int, int]
    """The number of samples of each component, by component id, rounded up to whole blocks."""
    first_scan: int
    """The offset of the first scan's marker."""
    single_scan: bool
    """Whether the first scan is the only one; then the picture is decoded a row of blocks at a time."""
    orientation: int


def read_frame(body: bytes | bytearray) -> Frame:
    """Reads the header. Raises a RequestError if it is not acceptable, ValueError, IndexError or struct.error if it is
    broken or cut short."""
    at, exif_orientation, frame = 2, 1, b""
    progressive = False
    for _ in range(_MAX_SEGMENTS):
        kind = body[at + 1]
        if body[at] != 0xFF or kind in _WITHOUT_LENGTH:
            raise ValueError("not a segment")
        if kind == 0xFF:
            # A marker may be preceded by any number of fill bytes.
            at += 1
            continue
        (length,) = struct.unpack_from(">H", body, at + 2)
        if kind in _FRAMES:
            if kind not in _SUPPORTED or frame:
                raise Unsupported(
                    "this kind of JPEG is not supported", field="image", allowed="one baseline or progressive picture"
                )
            frame, progressive = bytes(body[at + 4 : at + 2 + length]), kind in _PROGRESSIVE
        elif kind == _APP1 and exif_orientation == 1 and body[at + 4 : at + 10] == EXIF:
            exif_orientation = orientation(bytes(body[at + 4 : at + 2 + length]))
        elif kind == _START_OF_SCAN:
            single_scan = not progressive and body[at + 4] == frame[5]
            return _frame(frame, at, single_scan=single_scan, exif_orientation=exif_orientation)
        at += 2 + length
    raise TooLarge("the JPEG has too many segments", field="image", allowed=f"at most {_MAX_SEGMENTS}")


def _frame(header: bytes, first_scan: int, *, single_scan: bool, exif_orientation: int) -> Frame:
    _, height, width, count = struct.unpack_from(">BHHB", header)
    factors = {header[6 + 3 * index]: divmod(header[7 + 3 * index], 16) for index in range(count)}
    # Two components of one id would count once here, and libjpeg would decode both.
    if len(factors) < count or min(map(min, factors.values())) < 1:
        raise ValueError("not the components of a picture")
    widest, tallest = (max(factor[axis] for factor in factors.values()) for axis in (0, 1))
    samples = {
        number: 64 * math.ceil(width * across / widest / 8) * math.ceil(height * down / tallest / 8)
        for number, (across, down) in factors.items()
    }
    return Frame(height, width, samples, first_scan, single_scan, exif_orientation)


def scan_cost(body: bytes | bytearray, frame: Frame) -> DecodingCost:
    """The cost of the coefficients, which are kept in memory if there are several scans, and of the passes over
    them."""
    whole = sum(frame.samples.values())
    if frame.single_scan:
        return DecodingCost(0, whole)
    values = np.frombuffer(body, np.uint8, offset=frame.first_scan)
    # numpy finds the markers six times as fast as `bytes.count`. Those of a thumbnail may be among them.
    starts = np.flatnonzero((values[:-1] == 0xFF) & (values[1:] == _START_OF_SCAN))
    if len(starts) > MAX_SCANS:
        raise TooLarge("the JPEG has too many scans", field="image", got=len(starts), allowed=f"at most {MAX_SCANS}")
    visits = 0
    for start in starts.tolist():
        at = frame.first_scan + start
        numbers = body[at + 5 : at + 5 + 2 * min(4, int.from_bytes(body[at + 4 : at + 5], "big")) : 2]
        visits += sum(frame.samples.get(number, whole) for number in numbers)
    return DecodingCost(_COEFFICIENT_BYTES * whole, visits)


def decode_jpeg(body: bytes | bytearray, frame: Frame, spec: ImageSpec) -> Array:
    """The upright pixels, decoded at the smallest fast scale that leaves no side below that of the scaled picture."""
    least_height, least_width = decoded_size(frame, spec)
    scans = scan_cost(body, frame)
    decoded = least_height * least_width * spec.channels * (1 if frame.orientation == 1 else 2)
    resized = resized_bytes(least_height, least_width, spec)
    check_cost(DecodingCost(scans.memory_bytes + decoded + resized, scans.visits), body, spec)
    # strict: a file that is cut short is an error, where libjpeg would fill the rest with grey.
    pixels: Array = simplejpeg.decode_jpeg(
        body,
        "GRAY" if spec.channels == 1 else "RGB",
        min_height=least_height,
        min_width=least_width,
        strict=True,
    )
    return orient(pixels, frame.orientation)


def decoded_size(frame: Frame, spec: ImageSpec) -> tuple[int, int]:
    """The size, as stored, at the smallest fast scale that leaves no side below that of the scaled picture."""
    at = place(*upright_size(frame), spec)
    least = at.scaled_height, at.scaled_width
    if frame.orientation in SIDEWAYS:
        least = least[::-1]
    for eighths in FAST_SCALES:
        small = -(-frame.height * eighths // 8), -(-frame.width * eighths // 8)
        if small[0] >= least[0] and small[1] >= least[1]:
            return small
    return frame.height, frame.width


def upright_size(frame: Frame) -> tuple[int, int]:
    """The height and width of the picture as a person sees it."""
    return (frame.width, frame.height) if frame.orientation in SIDEWAYS else (frame.height, frame.width)
