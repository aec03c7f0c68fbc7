"""Looks into files within files: archives and compressed files, within limits on depth and on the unpacked size."""

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any

from marina.config.mar import READ_ERRORS as MAR_ERRORS

# Compressed formats that Python cannot read, so their content cannot be inspected.
_UNREADABLE = {
    b"\x04\x22\x4d\x18": "lz4",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"7z\xbc\xaf\x27\x1c": "7z",
    b"Rar!": "rar",
    b"LZIP": "lzip",
    b"\x1f\x9d": "compress",
    b"ZF0x": "joblib's old zlib form",
}
_COMPRESSED: dict[bytes, Callable[[IO[bytes]], Any]] = {
    b"\x1f\x8b": lambda stream: gzip.GzipFile(fileobj=stream),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
    b"\x5d\x00\x00": lzma.LZMAFile,
}
_DEEPEST = 5
# Data without a zlib header counts as zlib only if less than a tenth of it follows the compressed part.
_TRAILING_FRACTION = 10
_MOST_MEMBERS = 50_000
_PIECE = 2**20
# Java, torch and the archiver hardly compress models; an archive that grows beyond this is meant to exhaust the memory.
_GROWTH, _SPARE = 4, 256 * 2**20
_MANY = f"contains more than {_MOST_MEMBERS:,} nested files"
_GROWS = "grows to many times its size when it is unpacked"
READ_ERRORS = (*MAR_ERRORS, tarfile.TarError)


class TooMuch(Exception):
    """The archive exceeds what is inspected."""


@dataclass
class ReadBudget:
    """The bytes and the files that may still be read from one archive, including everything nested in it."""

    left: int
    members: int = _MOST_MEMBERS

    @classmethod
    def of(cls, size: int) -> "ReadBudget":
        """The budget for an archive of this many bytes."""
        return cls(size * _GROWTH + _SPARE)

    def read(self, stream: IO[bytes]) -> bytes:
        """Reads a whole member. Its real size counts, since the size in its header need not be true."""
        self.members -= 1
        if self.members < 0:
            raise TooMuch(_MANY)
        pieces: list[bytes] = []
        while piece := stream.read(_PIECE):
            self.take(len(piece))
            pieces.append(piece)
        return b"".join(pieces)

    def take(self, size: int) -> None:
        """Counts bytes that were read or unpacked."""
        self.left -= size
        if self.left < 0:
            raise TooMuch(_GROWS)


@dataclass
class NestedFile:
    """A file within a file; `trouble` says why its bytes cannot be read, if they cannot."""

    name: str
    data: bytes
    trouble: str = ""


def walk_nested(name: str, data: bytes, budget: ReadBudget, depth: int = 0) -> Iterator[NestedFile]:
    """The file itself and every file nested in it."""
    yield NestedFile(name, data)
    for beginning, kind in _UNREADABLE.items():
        if data.startswith(beginning):
            yield NestedFile(name, b"", f"cannot be inspected: compressed as {kind}")
    for inner in _members(name, data, budget):
        if inner.trouble:
            yield inner
        elif depth + 1 > _DEEPEST:
            yield NestedFile(inner.name, b"", f"cannot be inspected: archives are nested more than {_DEEPEST} deep")
            return
        else:
            yield from walk_nested(inner.name, inner.data, budget, depth + 1)


def _members(name: str, data: bytes, budget: ReadBudget) -> Iterator[NestedFile]:
    if data[:4] in (b"PK\x03\x04", b"PK\x05\x06") or _ends_as_zip(data):
        yield from _of_zip(name, data, budget)
    if data[257:262] == b"ustar" or (name.lower().endswith((".tar", ".pt", ".pth")) and _is_tar(data)):
        yield from _of_tar(name, data, budget)
    yield from _decompressed(name, data, budget)


def _ends_as_zip(data: bytes) -> bool:
    """Whether the data is a zip file by its end, as readers find it; anything may precede it."""
    return b"PK\x05\x06" in data[-66_000:] and zipfile.is_zipfile(io.BytesIO(data))


def _is_tar(data: bytes) -> bool:
    try:
        return tarfile.is_tarfile(io.BytesIO(data))
    except READ_ERRORS:
        return False


def _of_zip(name: str, data: bytes, budget: ReadBudget) -> Iterator[NestedFile]:
    # Python reads the whole directory at once, and each entry takes many times its size then.
    if data.count(b"PK\x01\x02") > budget.members:
        raise TooMuch(_MANY)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for info in archive.infolist():
                if not info.is_dir() or info.file_size:
                    yield zip_member(archive, info, budget, f"{name}:{info.filename}")
    except READ_ERRORS as err:
        yield NestedFile(name, b"", f"not a readable archive: {err}")


def zip_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, budget: ReadBudget, name: str) -> NestedFile:
    """One member of a zip file, or why it cannot be read."""
    if info.flag_bits & 0x1:
        return NestedFile(name, b"", "encrypted")
    try:
        with archive.open(info) as stream:
            data = budget.read(stream)
    except READ_ERRORS as err:
        return NestedFile(name, b"", f"cannot be read: {err or type(err).__name__}")
    wrong_size = f"{len(data):,} bytes long, but its header says {info.file_size:,}"
    return NestedFile(name, data, "" if len(data) == info.file_size else wrong_size)


def _of_tar(name: str, data: bytes, budget: ReadBudget) -> Iterator[NestedFile]:
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            for member in archive:
                if member.issym() or member.islnk():
                    yield NestedFile(f"{name}:{member.name}", b"", f"is a link to `{member.linkname}`")
                elif stream := archive.extractfile(member):
                    yield NestedFile(f"{name}:{member.name}", budget.read(stream))
    except READ_ERRORS as err:
        yield NestedFile(name, b"", f"not a readable archive: {err}")


def _decompressed(name: str, data: bytes, budget: ReadBudget) -> Iterator[NestedFile]:
    if _is_zlib(data):
        content, _ = _inflated(data, zlib.MAX_WBITS, budget)
        if content:
            yield NestedFile(f"{name}:content", content)
        return
    content, rest = _inflated(data, -zlib.MAX_WBITS, budget)
    # Without a header anything may look like zlib, but what does so by chance ends soon.
    if content and rest < len(data) // _TRAILING_FRACTION:
        yield NestedFile(f"{name}:content", content)
    for beginning, reader in _COMPRESSED.items():
        if data.startswith(beginning):
            try:
                with reader(io.BytesIO(data)) as opened:
                    yield NestedFile(f"{name}:content", budget.read(opened))
            except READ_ERRORS as err:
                yield NestedFile(name, b"", f"cannot be inspected: {err}")


def _is_zlib(data: bytes) -> bool:
    """Whether the first two bytes are a zlib header, for any window size."""
    return len(data) > 2 and data[0] & 0x8F == 8 and not data[1] & 0x20 and (data[0] << 8 | data[1]) % 31 == 0


def _inflated(data: bytes, window: int, budget: ReadBudget) -> tuple[bytes, int]:
    """The data decompressed by zlib, as far as that works, and the number of bytes after the compressed part. A
    negative `window` means that there is no header."""
    engine, content, trailing = zlib.decompressobj(window), bytearray(), len(data)
    try:
        while trailing and not engine.eof:
            at = len(data) - trailing
            rest = data[at : at + _PIECE]
            trailing -= len(rest)
            while rest and not engine.eof:
                piece = engine.decompress(rest, _PIECE)
                rest = engine.unconsumed_tail
                budget.take(len(piece))
                content += piece
        trailing += len(engine.unused_data)
    except zlib.error:
        trailing = len(data)
    return bytes(content), trailing
