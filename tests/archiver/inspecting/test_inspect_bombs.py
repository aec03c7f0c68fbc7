"""Archives whose inspection would take hours or fill the memory, if it did as the archive says."""

import struct
import zipfile
from pathlib import Path

import pytest

from marina.archiver.archive import MANIFEST
from marina.archiver.inspecting.inspect import inspect
from marina.archiver.inspecting.pickles import find_pickles
from marina.config.errors import ArchiveError
from marina.config.record import RECORD

MANIFEST_TEXT = b'{"model": {"modelName": "m", "handler": "image_classifier"}}'
LARGE = 2_000_000


def bomb(file: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in ({MANIFEST: MANIFEST_TEXT} | members).items():
            archive.writestr(name, data)
    return file


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "data"),
    [
        pytest.param("a.bin", b"\0" + b"(" * LARGE, id="brackets"),
        pytest.param("a.fasta", b"acgt" * (LARGE // 4), id="letters without a space"),
        pytest.param("a.yaml", b"\n" * LARGE, id="empty lines"),
        pytest.param("a.json", b'"auto_map":{' * (LARGE // 12), id="maps"),
        pytest.param("a.xml", b"<?xml?>" + b"<!DOCTYPE" * (LARGE // 9), id="document types"),
        pytest.param("a.xml", b"<?xml?>" + b"<include " * (LARGE // 9), id="includes"),
    ],
)
def test_time_does_not_grow_with_the_square_of_a_file(name: str, data: bytes, tmp_path: Path) -> None:
    assert inspect(bomb(tmp_path / "m.mar", {name: data})).sound


def test_overlapping_pickles_are_given_up(tmp_path: Path) -> None:
    report = inspect(bomb(tmp_path / "m.mar", {"a.bin": b"\0" + b"\x80\x02" * 500 + b"]" * 1_000}))
    assert [pickle.reasons for pickle in report.pickles] == [("has too many places where a pickle could begin",)]


def test_an_instance_is_found_whose_arguments_have_lines_of_their_own() -> None:
    pickles = list(find_pickles("a.bin", b"\0\0(S'touch x'\nios\nsystem\n."))
    assert [(pickle.file, pickle.reasons) for pickle in pickles] == [("a.bin at byte 2", ("calls os system",))]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        pytest.param("a.py", b"a;" * 300_000, "a.py: Python that cannot be parsed", id="a long file"),
        pytest.param("a.py", b"a;" * 9_000_000, "more than 16,777,216 bytes of Python", id="a very long file"),
        pytest.param("a.json", b'{"a":[' + b"[]," * 23_000_000 + b"1]}", "a.json: JSON that is too long", id="JSON"),
    ],
)
def test_what_would_fill_the_memory_is_not_parsed(name: str, data: bytes, expected: str, tmp_path: Path) -> None:
    report = inspect(bomb(tmp_path / "m.mar", {name: data}))
    assert [text.startswith(expected) for text in report.code] == [True]


def test_a_record_of_any_length_is_not_read(tmp_path: Path) -> None:
    mar = bomb(tmp_path / "m.mar", {RECORD: b" " * (2**25 + 1)})
    with pytest.raises(ArchiveError, match=r"`marina.json` is longer than 33,554,432 bytes; the rest is not inspected"):
        inspect(mar)


def test_the_directory_of_a_nested_archive_is_counted_before_it_is_read(tmp_path: Path) -> None:
    # None of these members can be read, so none would be counted.
    directory = struct.pack("<4s24xH16xs", b"PK\x01\x02", 1, b"a") * 50_001
    end = struct.pack("<4s8xLLH", b"PK\x05\x06", len(directory), 0, 0)
    with pytest.raises(ArchiveError, match=r"contains more than 50,000 nested files; the rest is not inspected"):
        inspect(bomb(tmp_path / "m.mar", {"a.zip": directory + end}))


def test_a_name_of_thousands_of_folders_takes_no_memory_for_each(tmp_path: Path) -> None:
    names = {f"{'a/' * 20_000}{number}.py": b"" for number in range(20)}
    assert inspect(bomb(tmp_path / "m.mar", names)).sound
