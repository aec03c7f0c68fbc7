"""Whether an archive is laid out as its directory says: nothing before, between or behind the members, no member twice,
no name that leads elsewhere."""

from __future__ import annotations

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
# Where a size is too large for its field, it stands among the extra fields.
_IN_EXTRA = 0xFFFFFFFF
_UNICODE_NAME = 0x7075
_DRIVE = re.compile(r"[A-Za-z]:")


def find_layout_oddities(mar: Path, archive: zipfile.ZipFile) -> Iterator[str]:
    """What an archive of an honest packer does not have."""
    members = archive.infolist()
    for name, count in Counter(info.filename for info in members).items():
        if count > 1:
            yield f"{name}: {count} times in the archive"
    for info in members:
        yield from _of_name(info)
    with mar.open("rb") as stream:
        yield from _between(stream, members, archive.start_dir)
        yield from _behind(stream, mar.stat().st_size)


def _of_name(info: zipfile.ZipInfo) -> Iterator[str]:
    name = info.filename
    parts = name.replace("\\", "/").split("/")
    if name.startswith(("/", "\\")) or ".." in parts or _DRIVE.match(name):
        yield f"{name}: would be unpacked outside the model's folder"
    elif {"", "."} & set(parts[:-1] if name.endswith("/") else parts):
        yield f"{name}: would be unpacked over a member of another name"
    if stat.S_ISLNK(info.external_attr >> 16):
        yield f"{name}: a symbolic link"
    elif stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
        yield f"{name}: neither a file nor a folder"
    if _UNICODE_NAME in _extra_fields(info.extra):
        yield f"{name}: has a second name beside its own"
    if name != info.orig_filename:
        yield f"{name}: its name goes on after a zero byte"
    if not name.isprintable():
        yield f"{name}: its name holds characters that are not to be seen"


def _extra_fields(extra: bytes) -> set[int]:
    """The numbers of the fields that a member has beyond those that all have."""
    numbers, at = set(), 0
    while at + 4 <= len(extra):
        number, length = struct.unpack_from("<HH", extra, at)
        numbers.add(number)
        at += 4 + length
    return numbers


def _differs(info: zipfile.ZipInfo, fields: tuple[int, ...]) -> bool:
    """Whether what stands before a member says otherwise than the directory: a reader that goes through the file, as
    Java's streams do, would see another member."""
    flags, method, sums = fields[2], fields[3], fields[6:9]
    promised = (info.CRC, info.compress_size, info.file_size)
    as_promised = all(value in (real, _IN_EXTRA) for value, real in zip(sums, promised, strict=True))
    # With this flag they follow the member.
    return (flags, method) != (info.flag_bits, info.compress_type) or not (as_promised or flags & 0x8)


def _between(stream: IO[bytes], members: list[zipfile.ZipInfo], directory: int) -> Iterator[str]:
    """Bytes that belong to no member: a reader that goes through the file finds what one that asks the directory does
    not."""
    at = 0
    for info in sorted(members, key=lambda info: info.header_offset):
        gap = info.header_offset - at
        if gap < 0:
            yield f"{info.filename}: lies over another member"
        elif gap:
            yield f"{gap:,} bytes before `{info.filename}` belong to no member"
        stream.seek(info.header_offset)
        header = stream.read(_LOCAL.size)
        if len(header) < _LOCAL.size:
            return
        fields = _LOCAL.unpack(header)
        if _differs(info, fields):
            yield f"{info.filename}: its own header does not say the same as the archive's directory"
        at = info.header_offset + _LOCAL.size + fields[9] + fields[10] + info.compress_size
        if info.flag_bits & 0x8:
            at += _descriptor(stream, at)
    if at < directory:
        yield f"{directory - at:,} bytes behind the last member belong to none"


def _descriptor(stream: IO[bytes], at: int) -> int:
    """The length of the sizes that follow a member which was written without knowing them."""
    stream.seek(at)
    data = stream.read(_DESCRIPTOR_BYTES + 4)
    for length in (12, 16, 20, 24):
        if data[length : length + 4] in (b"PK\x03\x04", b"PK\x01\x02"):
            return length
    return 0


def _behind(stream: IO[bytes], size: int) -> Iterator[str]:
    stream.seek(max(0, size - _END_BYTES - _LONGEST_COMMENT))
    tail = stream.read()
    at = tail.rfind(_END)
    if at < 0 or len(tail) < at + _END_BYTES:
        return
    comment = int.from_bytes(tail[at + 20 : at + 22], "little")
    if comment:
        yield f"a comment of {comment:,} bytes stands behind the archive"
    if behind := len(tail) - at - _END_BYTES - comment:
        yield f"{behind:,} bytes behind the end of the archive" if behind > 0 else "the archive is cut off at its end"
