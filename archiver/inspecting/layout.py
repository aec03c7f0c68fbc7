"""Checks that a zip archive is laid out as its directory says: nothing before, between or after the members, no member
twice, no name that leads outside."""

import re
import stat
import struct
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO

_LOCAL = struct.Struct("<4s5H3L2H")
_END, _END_BYTES, _LONGEST_COMMENT = b"PK\x05\x06", 22, 65_535
_DESCRIPTOR_BYTES = 24
# This value in a size field means that the real size is in an extra field.
_IN_EXTRA = 0xFFFFFFFF
_UNICODE_NAME = 0x7075
_DRIVE = re.compile(r"[A-Za-z]:")


def find_layout_oddities(mar: Path, archive: zipfile.ZipFile) -> Iterator[str]:
    """A sentence for each property that no honest packer gives an archive."""
    members = archive.infolist()
    for name, count in Counter(info.filename for info in members).items():
        if count > 1:
            yield f"{name}: {count} times in the archive"
    for info in members:
        yield from name_oddities(info.filename)
        yield from _entry_oddities(info)
    with mar.open("rb") as stream:
        yield from _gaps(stream, members, archive.start_dir)
        yield from _trailing_bytes(stream, mar.stat().st_size)


def name_oddities(name: str) -> Iterator[str]:
    """A sentence for each property of a name that would make a file appear elsewhere, or as another."""
    parts = name.replace("\\", "/").split("/")
    if name.startswith(("/", "\\")) or ".." in parts or _DRIVE.match(name):
        yield f"{name}: would be unpacked outside the model's folder"
    elif {"", "."} & set(parts[:-1] if name.endswith("/") else parts):
        yield f"{name}: would overwrite a member of another name"
    if not name.isprintable():
        yield f"{name}: its name contains invisible characters"


def _entry_oddities(info: zipfile.ZipInfo) -> Iterator[str]:
    name = info.filename
    if stat.S_ISLNK(info.external_attr >> 16):
        yield f"{name}: a symbolic link"
    elif stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
        yield f"{name}: neither a file nor a folder"
    if _UNICODE_NAME in _extra_fields(info.extra):
        yield f"{name}: has a second name"
    if name != info.orig_filename:
        yield f"{name}: its name continues after a zero byte"


def _extra_fields(extra: bytes) -> set[int]:
    """The ids of a member's extra fields."""
    numbers, at = set(), 0
    while at + 4 <= len(extra):
        number, length = struct.unpack_from("<HH", extra, at)
        numbers.add(number)
        at += 4 + length
    return numbers


def _differs(info: zipfile.ZipInfo, fields: tuple[int, ...]) -> bool:
    """Whether a member's own header contradicts the directory. A reader that goes through the file, as Java's streams
    do, would then see a different member."""
    flags, method, sums = fields[2], fields[3], fields[6:9]
    expected = (info.CRC, info.compress_size, info.file_size)
    as_expected = all(value in (real, _IN_EXTRA) for value, real in zip(sums, expected, strict=True))
    # With flag 0x8, checksum and sizes follow the member instead.
    return (flags, method) != (info.flag_bits, info.compress_type) or not (as_expected or flags & 0x8)


def _gaps(stream: IO[bytes], members: list[zipfile.ZipInfo], directory: int) -> Iterator[str]:
    """Bytes that belong to no member. A reader that goes through the file would find something there that one that uses
    the directory does not."""
    at = 0
    for info in sorted(members, key=lambda info: info.header_offset):
        gap = info.header_offset - at
        if gap < 0:
            yield f"{info.filename}: overlaps another member"
        elif gap:
            yield f"{gap:,} bytes before `{info.filename}` belong to no member"
        stream.seek(info.header_offset)
        header = stream.read(_LOCAL.size)
        if len(header) < _LOCAL.size:
            return
        fields = _LOCAL.unpack(header)
        if _differs(info, fields):
            yield f"{info.filename}: its own header contradicts the archive's directory"
        at = info.header_offset + _LOCAL.size + fields[9] + fields[10] + info.compress_size
        if info.flag_bits & 0x8:
            at += _descriptor_length(stream, at)
    if at < directory:
        yield f"{directory - at:,} bytes after the last member belong to no member"


def _descriptor_length(stream: IO[bytes], at: int) -> int:
    """The length of the data descriptor that follows a member whose sizes were not known when it was written."""
    stream.seek(at)
    data = stream.read(_DESCRIPTOR_BYTES + 4)
    for length in (12, 16, 20, 24):
        if data[length : length + 4] in (b"PK\x03\x04", b"PK\x01\x02"):
            return length
    return 0


def _trailing_bytes(stream: IO[bytes], size: int) -> Iterator[str]:
    stream.seek(max(0, size - _END_BYTES - _LONGEST_COMMENT))
    tail = stream.read()
    at = tail.rfind(_END)
    if at < 0 or len(tail) < at + _END_BYTES:
        return
    comment = int.from_bytes(tail[at + 20 : at + 22], "little")
    if comment:
        yield f"a comment of {comment:,} bytes follows the archive"
    if trailing := len(tail) - at - _END_BYTES - comment:
        yield f"{trailing:,} bytes follow the archive" if trailing > 0 else "the end of the archive is cut off"
