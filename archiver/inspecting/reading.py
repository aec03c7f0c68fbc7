"""Reads an archive that nobody vouches for, within limits on sizes, numbers and depth."""

import bz2
import gzip
import io
import json
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Any

from marina.archiver.archive import MANIFEST
from marina.archiver.inspecting.layout import find_layout_oddities, name_oddities
from marina.config.errors import ArchiveError, reason_of
from marina.config.mar import READ_ERRORS as MAR_ERRORS

# Compressed formats that Python cannot read, so their content cannot be inspected.
_UNREADABLE = {b"\x04\x22\x4d\x18": "lz4", b"\x28\xb5\x2f\xfd": "zstd", b"7z\xbc\xaf\x27\x1c": "7z", b"Rar!": "rar"}
_COMPRESSED: dict[bytes, Callable[[IO[bytes]], Any]] = {
    b"\x1f\x8b": lambda stream: gzip.GzipFile(fileobj=stream),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
    b"\x5d\x00\x00": lzma.LZMAFile,
}
_DEEPEST = 5
_MOST_MEMBERS = 50_000
_PIECE = 2**20
# Java, torch and the archiver hardly compress models; an archive that grows beyond this is meant to exhaust the memory.
_GROWTH, _SPARE = 4, 256 * 2**20
READ_ERRORS = (*MAR_ERRORS, tarfile.TarError)


class TooMuch(Exception):
    """The archive exceeds what is inspected."""


@dataclass
class _Budget:
    """The bytes and the files that may still be read from one archive, including everything nested in it."""

    left: int
    members: int = _MOST_MEMBERS

    def read(self, stream: IO[bytes]) -> bytes:
        """Reads a whole member. Its real size counts, since the size in its header need not be true."""
        self.take_member()
        pieces: list[bytes] = []
        while piece := stream.read(_PIECE):
            self.take(len(piece))
            pieces.append(piece)
        return b"".join(pieces)

    def take(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise TooMuch("grows to many times its size when it is unpacked")

    def take_member(self) -> None:
        self.expect_members(1)
        self.members -= 1

    def expect_members(self, count: int) -> None:
        if count > self.members:
            raise TooMuch(f"contains more than {_MOST_MEMBERS:,} nested files")


@dataclass(frozen=True)
class File:
    """A file's content; `trouble` says why it cannot be read, if it cannot."""

    name: str
    data: bytes
    trouble: str = ""


@dataclass(frozen=True)
class _Member:
    name: str
    size: int
    open: Callable[[], IO[bytes]] | None
    trouble: str = ""


class Archive:
    """A packed model: a `.mar`, a `.tar.gz` or a folder, as torch-model-archiver makes them."""

    def __init__(self, path: Path, members: list[_Member], damage: Iterator[str], budget: _Budget) -> None:
        self.path, self.damage, self._budget = path, tuple(damage), budget
        self._members = {member.name: member for member in members}
        self.sizes = {member.name: member.size for member in members}
        if MANIFEST not in self._members:
            raise ArchiveError(f"{path}: not a MAR: it has no `{MANIFEST}`")
        self.manifest = self._manifest()

    def read(self, name: str) -> bytes:
        """The content of a file; ArchiveError if it is not there or cannot be read."""
        if name not in self._members:
            raise ArchiveError(f"{self.path}: it has no `{name}`")
        file = self._read(self._members[name])
        if file.trouble:
            raise ArchiveError(f"{self.path}: `{name}`: {file.trouble}")
        return file.data

    def files(self) -> Iterator[File]:
        """Every file."""
        return map(self._read, self._members.values())

    def nested(self, file: File, depth: int = 0) -> Iterator[File]:
        """The file and every file within it: in archives, and behind compression."""
        yield file
        for beginning, kind in _UNREADABLE.items():
            if file.data.startswith(beginning):
                yield File(file.name, b"", f"cannot be inspected: compressed as {kind}")
        for inner in _inner_files(file, self._budget):
            if inner.trouble:
                yield inner
            elif depth + 1 > _DEEPEST:
                yield File(inner.name, b"", f"cannot be inspected: archives are nested more than {_DEEPEST} deep")
                return
            else:
                yield from self.nested(inner, depth + 1)

    def unpack(self, folder: Path) -> None:
        """Writes every file below a folder; ArchiveError if one cannot be read, or would land elsewhere."""
        for member in self._members.values():
            trouble = member.trouble or next(name_oddities(member.name), "")
            if trouble or member.open is None:
                raise ArchiveError(f"{self.path}: `{member.name}`: {trouble}", hint=f"marina inspect {self.path}")
            file = folder / member.name
            file.parent.mkdir(parents=True, exist_ok=True)
            try:
                with member.open() as stream, file.open("wb") as target:
                    self._budget.take_member()
                    while piece := stream.read(_PIECE):
                        self._budget.take(len(piece))
                        target.write(piece)
            except (*MAR_ERRORS, tarfile.TarError) as err:
                raise ArchiveError(f"{self.path}: `{member.name}`: cannot be read: {reason_of(err)}") from err

    def _read(self, member: _Member) -> File:
        return _read_member(member, self._budget)

    def _manifest(self) -> dict[str, Any]:
        try:
            manifest = json.loads(self.read(MANIFEST))
        except (ValueError, RecursionError) as err:
            raise ArchiveError(f"{self.path}: `{MANIFEST}`: not JSON: {str(err) or type(err).__name__}") from err
        if not isinstance(manifest, dict) or not isinstance(manifest.get("model"), dict):
            raise ArchiveError(f"{self.path}: `{MANIFEST}`: no object with a `model` in it")
        return manifest


@contextmanager
def open_archive(path: Path) -> Iterator[Archive]:
    """Opens a packed model that need not be trusted; ArchiveError if it is none, or takes more than it should."""
    with _too_much_is_an_error(path), ExitStack() as stack:
        try:
            budget = _Budget(path.stat().st_size * _GROWTH + _SPARE)
            if path.is_dir():
                members = list(_in_folder(path))
                budget.left += sum(member.size for member in members) * _GROWTH
                damage = _names(members)
            elif path.name.endswith((".tar.gz", ".tgz")):
                members = _without_folder(list(_in_tar(stack.enter_context(tarfile.open(path)), budget)))
                damage = _names(members)
            else:
                zipped = stack.enter_context(zipfile.ZipFile(path))
                members, damage = list(_in_zip(zipped)), find_layout_oddities(path, zipped)
            archive = Archive(path, members, damage, budget)
        except FileNotFoundError as err:
            raise ArchiveError(f"{path}: no such file", hint="marina package SPEC") from err
        except READ_ERRORS as err:
            raise ArchiveError(f"{path}: not a readable MAR: {reason_of(err)}") from err
        yield archive


@contextmanager
def _too_much_is_an_error(path: Path) -> Iterator[None]:
    try:
        yield
    except TooMuch as err:
        raise ArchiveError(f"{path}: {err}; the rest is not inspected") from err


def _names(members: list[_Member]) -> Iterator[str]:
    return (oddity for member in members for oddity in name_oddities(member.name))


def _in_folder(folder: Path) -> Iterator[_Member]:
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder).as_posix()
        if file.is_symlink() or not (file.is_file() or file.is_dir()):
            yield _Member(name, 0, None, "a symbolic link" if file.is_symlink() else "neither a file nor a folder")
        elif file.is_file():
            yield _Member(name, file.stat().st_size, partial(_open_file, file))


def _without_folder(members: list[_Member]) -> list[_Member]:
    """The members by their names in the model's folder: torch-model-archiver puts that folder into a `.tar.gz`."""
    tops = {member.name.partition("/")[0] for member in members}
    folder = f"{tops.pop()}/" if len(tops) == 1 else ""
    if not any(member.name == folder + MANIFEST for member in members):
        return members
    return [replace(member, name=member.name.removeprefix(folder)) for member in members]


def _open_file(file: Path) -> IO[bytes]:
    return file.open("rb")


def _in_zip(archive: zipfile.ZipFile) -> Iterator[_Member]:
    for info in archive.infolist():
        if not info.is_dir() or info.file_size:
            trouble = "encrypted" if info.flag_bits & 0x1 else ""
            yield _Member(info.filename, info.file_size, partial(archive.open, info), trouble)


def _in_tar(archive: tarfile.TarFile, budget: _Budget) -> Iterator[_Member]:
    for info in archive:
        budget.take_member()
        budget.take(info.size)  # to go on to the next member, all before it is unpacked
        name = info.name.removeprefix("./")
        if info.isfile():
            yield _Member(name, info.size, partial(_open_in_tar, archive, info))
        elif not info.isdir():
            yield _Member(name, 0, None, "neither a file nor a folder")


def _open_in_tar(archive: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    return archive.extractfile(info) or io.BytesIO()


def _read_member(member: _Member, budget: _Budget) -> File:
    if member.trouble or member.open is None:
        return File(member.name, b"", member.trouble)
    try:
        with member.open() as stream:
            data = budget.read(stream)
    except READ_ERRORS as err:
        return File(member.name, b"", f"cannot be read: {err or type(err).__name__}")
    wrong_size = f"{len(data):,} bytes long, but its header says {member.size:,}"
    return File(member.name, data, "" if len(data) == member.size else wrong_size)


def _inner_files(file: File, budget: _Budget) -> Iterator[File]:
    name, data = file.name, file.data
    try:
        if data[:4] == b"PK\x03\x04" or (b"PK\x05\x06" in data[-66_000:] and zipfile.is_zipfile(io.BytesIO(data))):
            # Python reads the whole directory at once, and each entry takes many times its size then.
            budget.expect_members(data.count(b"PK\x01\x02"))
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                yield from (_inner(name, member, budget) for member in _in_zip(archive))
        elif data[257:262] == b"ustar":
            with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
                yield from (_inner(name, member, budget) for member in _in_tar(tar, budget))
        elif content := _inflated(data, budget):
            yield File(f"{name}:content", content)
        for beginning, reader in _COMPRESSED.items():
            if data.startswith(beginning):
                with reader(io.BytesIO(data)) as opened:
                    yield File(f"{name}:content", budget.read(opened))
    except READ_ERRORS as err:
        yield File(name, b"", f"not a readable archive: {err or type(err).__name__}")


def _inner(outer: str, member: _Member, budget: _Budget) -> File:
    file = _read_member(member, budget)
    return File(f"{outer}:{file.name}", file.data, file.trouble)


def _inflated(data: bytes, budget: _Budget) -> bytes:
    """What is compressed by zlib, as joblib does; empty if it only looked like that by chance."""
    engine, content = zlib.decompressobj(), bytearray()
    if not data or data[0] & 0xF != 8 or int.from_bytes(data[:2], "big") % 31:
        return b""
    try:
        while data and not engine.eof:
            piece = engine.decompress(data, _PIECE)
            data = engine.unconsumed_tail
            budget.take(len(piece))
            content += piece
    except zlib.error:
        return b""
    return bytes(content)
