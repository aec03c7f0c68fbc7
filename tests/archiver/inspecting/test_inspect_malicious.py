"""What attackers would hide in an archive: nothing runs, and nothing is called sound but what is known to be missed."""

import os
import struct
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import malicious
import pytest

import marina
from marina.archiver.archive import MANIFEST
from marina.archiver.inspecting import inspect
from marina.config.errors import ArchiveError
from marina.config.record import RECORD

# The file that an archive of the corpus would create if its code ran.
MARK = Path(tempfile.gettempdir(), f"marina-corpus-{os.getpid()}")


@pytest.fixture(autouse=True)
def _nothing_is_run() -> Iterator[None]:
    yield
    assert not MARK.exists()


def is_called_sound(mar: Path) -> bool:
    try:
        return inspect(mar).sound
    except ArchiveError:
        return False


@pytest.mark.parametrize("technique", malicious.pickles(MARK))
@pytest.mark.parametrize("name", ["weights_0", "model.pt"])
def test_a_pickle_that_does_more_than_create_tensors_is_not_sound(technique: str, name: str, tmp_path: Path) -> None:
    members = {name: malicious.pickles(MARK)[technique], "helper.py": b"x = 1\n"}
    missed = malicious.MISSED if name == "model.pt" else malicious.MISSED_UNNAMED
    is_sound = is_called_sound(malicious.archive(tmp_path / "m.mar", members))
    assert is_sound == (technique in missed | malicious.PROGRAMS)


def test_the_report_says_what_a_scan_of_pickles_does_not_see(tmp_path: Path) -> None:
    members = {"model.pt": malicious.pickles(MARK)["protocol 2"]}
    text = inspect(malicious.archive(tmp_path / "m.mar", members)).as_text()
    assert "pickle     model.pt: MAY RUN CODE: imports posix system, which runs code" in text
    assert "(by picklescan, which does not see pickles in the middle of a file, extension codes" in text
    assert text.splitlines()[-1] == "NOT SOUND"


@pytest.mark.slow
@pytest.mark.parametrize("technique", malicious.members(MARK))
def test_a_member_that_reaches_out_is_not_sound(technique: str, tmp_path: Path) -> None:
    assert not is_called_sound(malicious.archive(tmp_path / "m.mar", malicious.members(MARK)[technique]))


@pytest.mark.parametrize("field", malicious.manifests())
def test_a_manifest_that_reaches_out_of_the_archive_is_not_sound(field: str, tmp_path: Path) -> None:
    assert not is_called_sound(malicious.archive(tmp_path / "m.mar", {}, malicious.manifests()[field]))


@pytest.mark.parametrize("change", malicious.LAYOUTS)
def test_an_archive_that_contradicts_its_directory_is_not_sound(change: str, tmp_path: Path) -> None:
    mar = malicious.archive(tmp_path / "m.mar", {"a.txt": b"text", "b.txt": b"x" * 100})
    assert inspect(mar).sound
    malicious.LAYOUTS[change](mar)
    assert not is_called_sound(mar)


def test_control_characters_in_names_are_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named = {"\x1b]0;title\x07a\x1b[31m\nsound": b""}
    mar = malicious.archive(tmp_path / "m.mar", named, {"modelName": "\x1b[2J\x9b1m"})
    assert marina.main(["inspect", str(mar)]) == 1
    shown = capsys.readouterr().out
    assert not set(shown) & {"\x1b", "\x07", "\x9b"}
    assert shown.splitlines()[-1] == "NOT SOUND"
    assert "sound" not in shown.splitlines()


LARGE = 2_000_000


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("name", "data", "is_sound"),
    [
        pytest.param("a.bin", b"\0" + b"(" * LARGE, True, id="brackets"),
        pytest.param("a.yaml", b"\n" * LARGE, True, id="empty lines"),
        pytest.param("a.pkl", b"(" * 10_000_000 + b".", False, id="opcodes"),
        pytest.param("a.pkl", b"N" + b"0N" * 5_000_000 + b".", False, id="more opcodes"),
    ],
)
def test_time_does_not_grow_with_the_square_of_a_file(name: str, data: bytes, is_sound: bool, tmp_path: Path) -> None:
    assert inspect(malicious.archive(tmp_path / "m.mar", {name: data})).sound is is_sound


def test_a_record_of_any_length_is_not_read(tmp_path: Path) -> None:
    mar = malicious.archive(tmp_path / "m.mar", {RECORD: b" " * (2**25 + 1)})
    with pytest.raises(ArchiveError, match=r"`marina.json` is longer than 33,554,432 bytes; the rest is not inspected"):
        inspect(mar)


def test_the_directory_of_a_nested_archive_is_counted_before_it_is_read(tmp_path: Path) -> None:
    # None of these members can be read, so none would be counted.
    directory = struct.pack("<4s24xH16xs", b"PK\x01\x02", 1, b"a") * 50_001
    end = struct.pack("<4s8xLLH", b"PK\x05\x06", len(directory), 0, 0)
    with pytest.raises(ArchiveError, match=r"contains more than 50,000 nested files; the rest is not inspected"):
        inspect(malicious.archive(tmp_path / "m.mar", {"a.zip": directory + end}))


def test_a_tar_that_unpacks_to_much_is_given_up_before_it_is_unpacked(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "m.tar.gz", "w:gz", compresslevel=1) as archive:
        info = tarfile.TarInfo(MANIFEST)
        info.size = 300_000_000
        with open("/dev/zero", "rb") as zeros:
            archive.addfile(info, zeros)
    with pytest.raises(ArchiveError, match="grows to many times its size when it is unpacked"):
        inspect(tmp_path / "m.tar.gz")
