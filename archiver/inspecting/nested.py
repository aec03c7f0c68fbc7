"""Looks into files within files: archives, compressed files and arrays, by their real size and only so deep."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any

from config.mar import READ_ERRORS as MAR_ERRORS

# Compressed forms that Python has no reader for: their content cannot be followed.
_CLOSED = {
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
# A tenth of a compressed file, at most, is anything else.
_MOST_BEHIND = 10
_MOST_MEMBERS = 50_000
_PIECE = 2**20
# Java, torch and the archiver store models as they are; what grows beyond this is made to fill a memory.
_GROWTH, _SPARE = 4, 256 * 2**20
READ_ERRORS = (*MAR_ERRORS, tarfile.TarError)


class TooMuch(Exception):
    """More than is looked at."""


@dataclass
class Budget:
    """What may be read of one archive in all, with everything inside of it."""

    left: int
    members: int = _MOST_MEMBERS

    @classmethod
    def of(cls, size: int) -> Budget:
        """What an archive of this size may hold."""
        return cls(size * _GROWTH + _SPARE)

    def read(self, stream: IO[bytes]) -> bytes:
        """A member whole, by what it really holds: what it claims is nobody's promise."""
        self.members -= 1
        if self.members < 0:
            raise TooMuch(f"more than {_MOST_MEMBERS:,} files in files")
        pieces: list[bytes] = []
        while piece := stream.read(_PIECE):
            self.left -= len(piece)
            if self.left < 0:
                raise TooMuch("grows to many times its size when it is read")
            pieces.append(piece)
        return b"".join(pieces)


@dataclass
class Inside:
    """One file within a file; `trouble` says why its bytes cannot be had."""

    name: str
    data: bytes
    trouble: str = ""
    depth: int = field(default=0, repr=False)


def unpacked(name: str, data: bytes, budget: Budget, depth: int = 0) -> Iterator[Inside]:
    """The file itself and everything inside of it."""
    yield Inside(name, data, depth=depth)
    for closed, kind in _CLOSED.items():
        if data.startswith(closed):
            yield Inside(name, b"", f"cannot be followed: compressed as {kind}")
    for inner in _members(name, data, budget):
        if inner.trouble:
            yield inner
        elif depth + 1 > _DEEPEST:
            yield Inside(inner.name, b"", f"cannot be followed: more than {_DEEPEST} archives in each other")
            return
        else:
            yield from unpacked(inner.name, inner.data, budget, depth + 1)


def _members(name: str, data: bytes, budget: Budget) -> Iterator[Inside]:
    if data[:4] in (b"PK\x03\x04", b"PK\x05\x06") or _ends_as_zip(data):
        yield from _of_zip(name, data, budget)
    if data[257:262] == b"ustar" or (name.lower().endswith((".tar", ".pt", ".pth")) and _is_tar(data)):
        yield from _of_tar(name, data, budget)
    yield from _decompressed(name, data, budget)


def _ends_as_zip(data: bytes) -> bool:
    """A zip file is found by its end: anything may stand before it."""
    return b"PK\x05\x06" in data[-66_000:] and zipfile.is_zipfile(io.BytesIO(data))


def _is_tar(data: bytes) -> bool:
    try:
        return tarfile.is_tarfile(io.BytesIO(data))
    except READ_ERRORS:
        return False


def _of_zip(name: str, data: bytes, budget: Budget) -> Iterator[Inside]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for info in archive.infolist():
                if not info.is_dir() or info.file_size:
                    yield zip_member(archive, info, budget, f"{name}:{info.filename}")
    except READ_ERRORS as err:
        yield Inside(name, b"", f"not a readable archive: {err}")


def zip_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, budget: Budget, name: str) -> Inside:
    """One member, or why it cannot be read."""
    if info.flag_bits & 0x1:
        return Inside(name, b"", "encrypted")
    try:
        with archive.open(info) as stream:
            data = budget.read(stream)
    except READ_ERRORS as err:
        return Inside(name, b"", f"cannot be read: {err or type(err).__name__}")
    is_whole = len(data) == info.file_size
    return Inside(name, data, "" if is_whole else f"{len(data):,} bytes long, not {info.file_size:,} as it says")


def _of_tar(name: str, data: bytes, budget: Budget) -> Iterator[Inside]:
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            for member in archive:
                if member.issym() or member.islnk():
                    yield Inside(f"{name}:{member.name}", b"", f"is a link to `{member.linkname}`")
                elif stream := archive.extractfile(member):
                    yield Inside(f"{name}:{member.name}", budget.read(stream))
    except READ_ERRORS as err:
        yield Inside(name, b"", f"not a readable archive: {err}")


def _decompressed(name: str, data: bytes, budget: Budget) -> Iterator[Inside]:
    if _is_zlib(data):
        content, _ = _inflated(data, zlib.MAX_WBITS, budget)
        if content:
            yield Inside(f"{name}:content", content)
        return
    content, rest = _inflated(data, -zlib.MAX_WBITS, budget)
    # It has no first bytes of its own: what is read as such by chance ends soon.
    if content and rest < len(data) // _MOST_BEHIND:
        yield Inside(f"{name}:content", content)
    for beginning, reader in _COMPRESSED.items():
        if data.startswith(beginning):
            try:
                with reader(io.BytesIO(data)) as opened:
                    yield Inside(f"{name}:content", budget.read(opened))
            except READ_ERRORS as err:
                yield Inside(name, b"", f"cannot be followed: {err}")


def _is_zlib(data: bytes) -> bool:
    """Whether these two bytes can begin it, with any window."""
    return len(data) > 2 and data[0] & 0x8F == 8 and not data[1] & 0x20 and (data[0] << 8 | data[1]) % 31 == 0


def _inflated(data: bytes, window: int, budget: Budget) -> tuple[bytes, int]:
    """What is compressed in zlib's form, as far as it goes, and how many bytes follow it; `window`: negative where no
    header stands before it."""
    engine, content, behind = zlib.decompressobj(window), bytearray(), len(data)
    try:
        while behind and not engine.eof:
            at = len(data) - behind
            rest = data[at : at + _PIECE]
            behind -= len(rest)
            while rest and not engine.eof:
                piece = engine.decompress(rest, _PIECE)
                rest = engine.unconsumed_tail
                budget.left -= len(piece)
                if budget.left < 0:
                    raise TooMuch("grows to many times its size when it is read")
                content += piece
        behind += len(engine.unused_data)
    except zlib.error:
        behind = len(data)
    return bytes(content), behind
