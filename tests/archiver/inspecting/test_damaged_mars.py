"""A MAR that is damaged anywhere gives a single error, and no traceback, whichever verb reads it."""

import random
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest
from tiny import make_tiny

import marina
from marina.archiver.inspecting.inspect import inspect
from marina.config.errors import ArchiveError
from marina.config.mar import open_mar
from marina.config.record import read_record
from marina.config.render import Ports
from marina.config.spec import Spec
from marina.server.java.checks import Java, check_disk_space, check_package
from marina.server.java.door import Door
from marina.server.java.launch import plan_launch

SEEDS = range(40)


def damaged(data: bytes, seed: int) -> bytes:
    """The data with bytes changed, removed, doubled or swapped, mostly in the archive's directory."""
    chosen, changed = random.Random(seed), bytearray(data)
    directory = data.find(b"PK\x01\x02")
    for _ in range(chosen.randrange(1, 6)):
        at = chosen.randrange(directory, len(changed)) if chosen.random() < 0.6 else chosen.randrange(len(changed))
        end = min(len(changed), at + chosen.randrange(1, 40))
        kind = chosen.randrange(5)
        if kind == 0:
            changed[at] = chosen.randrange(256)
        elif kind == 1:
            changed[at:end] = chosen.randbytes(end - at)
        elif kind == 2:
            del changed[at:end]
        elif kind == 3:
            changed[at:at] = changed[at:end]
        else:
            del changed[at:]
        if len(changed) <= directory:
            break
    return bytes(changed)


def ends_well(function: Callable[[], object]) -> None:
    """Checks that the function succeeds or raises ArchiveError; any other exception would be a traceback for the
    user."""
    message = ""
    try:
        function()
    except ArchiveError as err:
        message = err.message
    assert not message or message.isprintable()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Spec, bytes]:
    spec, mar = make_tiny(tmp_path_factory.mktemp("whole"))
    return spec, mar.read_bytes()


def served(spec: Spec, mar: Path, folder: Path) -> None:
    """Reads the MAR as far as a server does when it starts."""
    check_package(spec, mar)
    check_disk_space(mar, folder)
    java = Java(folder / "no-java", 17)
    with closing(Door("127.0.0.1", 0)) as door, suppress(FileNotFoundError):
        plan_launch(spec, mar=mar, ports=Ports(), host="", directory=folder, java=java).start(door)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_damaged_mar_is_one_error(seed: int, whole: tuple[Spec, bytes], tmp_path: Path) -> None:
    spec, data = whole
    mar = tmp_path / "model.mar"
    mar.write_bytes(damaged(data, seed))
    (tmp_path / "run").mkdir()
    ends_well(lambda: inspect(mar).as_text())
    ends_well(lambda: read_record(mar))
    ends_well(lambda: served(spec, mar, tmp_path / "run"))


@pytest.mark.parametrize("seed", range(0, 40, 8))
def test_inspect_of_a_damaged_mar_is_never_a_success(seed: int, whole: tuple[Spec, bytes], tmp_path: Path) -> None:
    mar = tmp_path / "model.mar"
    mar.write_bytes(damaged(whole[1], seed))
    assert marina.main(["inspect", str(mar)]) in (1, 2)


def test_a_file_that_is_missing_from_a_mar_is_an_error_with_its_name(whole: tuple[Spec, bytes], tmp_path: Path) -> None:
    mar = tmp_path / "model.mar"
    mar.write_bytes(whole[1])
    with pytest.raises(ArchiveError, match="no item named 'absent'"), open_mar(mar) as archive:
        archive.read("absent")
