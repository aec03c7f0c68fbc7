"""Bodies that no client should send, made from a seed: the same number gives the same ones."""

import gzip
import io
import json
import random
import struct
import zlib
from collections.abc import Iterator

import numpy as np
from PIL import Image

TYPES = (
    *("image/png", "image/jpeg", "image/webp", "application/json", "application/x-npy", "application/octet-stream", ""),
    *(
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "text/plain",
        "application/json; charset=x",
    ),
)
_JSON = (
    *(b"", b"{", b"[]", b"null", b'{"image": ""}', b'{"image": "AAAA"}', b'{"image": [[[1]]]}', b'{"inputs": {}}'),
    *(
        b'{"inputs": [{"name": "x", "shape": [64], "datatype": {}, "data": [0]}]}',
        b'{"instances": [{"b64": {"b64": 5}}]}',
    ),
    *(b'{"inputs": [{"name": "x", "shape": [64], "datatype": "FP32", "parameters": [1]}]}', b'{"image": "\\ud800"}'),
    *(b'{"a":' * 5000 + b"1" + b"}" * 5000, b"\xef\xbb\xbf{}", b'{"x": [' + b"9" * 5000 + b"]}", b'{"x": 1, "x": [2]}'),
    *(b"[" * 50_000, b'{"image": 1e999}', b'{"x": NaN}', b'{"instances": [{"b64": "*"}]}', b'{"image": "\xff"}'),
    *(b'{"x": %s}' % number for number in (b"-NaN", b"Infinity", b"1e400", b"-0", b"0x1", b"1_000", b"\xef\xbc\x91")),
    *(b"[" + b"[]," * 400_000 + b"[]]", b"[" + b"0," * 1_200_000 + b"0]", b'{"x": [' + b"1e308," * 63 + b"1e308]}"),
)


def bodies(count: int, seed: int, samples: list[bytes]) -> Iterator[tuple[bytes, str]]:
    """Bodies and their declared types."""
    chance = random.Random(seed)
    seeds = [*_pictures(), *_arrays(), *_containers(), *samples, *_JSON]
    yield from ((body, chance.choice(TYPES)) for body in (*seeds, *_bombs()))
    for _ in range(count - len(seeds) - len(_bombs())):
        yield _mutated(chance, chance.choice(seeds)), chance.choice(TYPES)


def _mutated(chance: random.Random, body: bytes) -> bytes:
    kind, data = chance.randrange(6), bytearray(body[:200_000])
    if kind == 0 or not data:
        return chance.randbytes(chance.randrange(4000))
    if kind == 1:
        return bytes(data[: chance.randrange(len(data))])
    if kind == 2:
        return bytes(data) + chance.randbytes(chance.randrange(500))
    if kind == 3:
        at = chance.randrange(len(data))
        return bytes(data[:at] + data[at : at + 200] * chance.randrange(1, 50) + data[at:])
    for _ in range(chance.randrange(1, 30)):
        # Most of the headers' secrets lie in front.
        at = chance.randrange(min(len(data), 64 if kind == 4 else len(data)))
        data[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
    return bytes(data)


def _encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def _pictures() -> list[bytes]:
    pixels = np.random.default_rng(0).integers(0, 255, (40, 60, 3)).astype(np.uint8)
    picture, exif = Image.fromarray(pixels), Image.Exif()
    exif[0x0112] = 7
    return [
        _encoded(picture, "JPEG", exif=exif),
        _encoded(picture, "JPEG", progressive=True),
        _encoded(picture.convert("CMYK"), "JPEG"),
        _encoded(picture, "PNG", exif=exif),
        _encoded(picture.convert("RGBA"), "PNG"),
        _encoded(picture.quantize(), "PNG"),
        _encoded(picture, "WEBP", exif=exif),
        _encoded(picture, "WEBP", lossless=True),
        _encoded(picture, "PNG", save_all=True, append_images=[picture]),
        _encoded(picture, "GIF"),
        _encoded(picture, "TIFF"),
        *(_encoded(Image.new("RGB", (width, 1)), "PNG", exif=exif) for width in (1, 2, 60)),
    ]


def _arrays() -> list[bytes]:
    arrays = [
        np.zeros((8, 8, 1), np.uint8),
        np.full((1, 8, 8), 0.5, np.float32),
        np.array([1e300, np.nan]),
        np.array(1),
    ]
    bodies = []
    for array in arrays:
        buffer = io.BytesIO()
        np.save(buffer, array)
        bodies.append(buffer.getvalue())
    return bodies


def _containers() -> list[bytes]:
    """Files in other forms, with lengths that are not true."""
    header = json.dumps({"x": {"dtype": "F32", "shape": [64], "data_offsets": [0, 256]}}).encode()
    part = b"--x\r\nContent-Disposition: form-data; name=%s\r\n%s\r\n{}\r\n"
    return [
        *(struct.pack("<Q", length) + header + bytes(256) for length in (len(header), 2**63, 2**64 - 1, 1)),
        struct.pack("<Q", len(header)) + header.replace(b"256]", b"99999999999]"),
        gzip.compress(b'{"x": 1}'),
        gzip.compress(bytes(30_000_000)),
        zlib.compress(bytes(30_000_000)),
        *(
            part % (name, b"") + b"--x--\r\n"
            for name in (b'"data"', b'"body"', b'"\0"', b'"a"; filename="../../a"', b"")
        ),
        part % (b'"a"', b"Content-Transfer-Encoding: base64\r\n") * 300 + b"--x--\r\n",
        part % (b'"a"', b"Content-Type: multipart/mixed; boundary=x\r\n") + b"--x",
        b"--x" * 50_000,
        b"PK\x03\x04" + bytes(300),
        b"\x80\x04cos\nsystem\n(S'true'\ntR.",
    ]


def _bombs() -> list[bytes]:
    """Small bodies that ask for much."""
    flat = _encoded(Image.new("L", (3000, 3000)), "JPEG", progressive=True)
    last_scan = flat[flat.rindex(b"\xff\xda") : -2]

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    def png(side: int, extra: bytes = b"") -> bytes:
        header = struct.pack(">IIBBBBB", side, side, 8, 6, 0, 0, 0)
        data = zlib.compress(bytes(min(side * (4 * side + 1), 60_000_000)), 9)
        return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + extra + chunk(b"IDAT", data) + chunk(b"IEND", b"")

    text = chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(1_000_000)))
    return [
        *(flat[:-2] + last_scan * scans + b"\xff\xd9" for scans in (30, 90, 3000)),
        *(_encoded(Image.new("RGB", (side, side)), "WEBP", quality=1) for side in (2800, 6320)),
        *(png(side) for side in (3500, 6000, 60_000)),
        png(8, text * 60),
        png(8, chunk(b"IDAT", b"") * 30_000),
        json.dumps({"image": "A" * 5_000_000}).encode(),
        b"\xff\xd8" + b"\xff\xfe\0\x02" * 500_000,
    ]
