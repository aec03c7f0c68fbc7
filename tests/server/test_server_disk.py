"""A full disk: what the supervisor still does, and what it reports."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from marina.server.system.output import LogFile
from marina.server.watching.disk import Disk
from marina.server.watching.worker_metrics import WorkerMetrics

WRITER = "from prometheus_client import Counter; Counter('seen', 'Seen').inc(2)"


def count_in(directory: Path) -> None:
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(directory)}
    subprocess.run([sys.executable, "-c", WRITER], env=environment, check=True)


def no_room(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_numbers_of_the_dead_wait_for_room_and_are_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = WorkerMetrics(tmp_path, say=pytest.fail)
    count_in(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", no_room)
        assert [metrics.page().count("seen_total 2.0\n") for _ in range(2)] == [1, 1]
    assert "seen_total 2.0\n" in metrics.page()
    assert [file.name for file in tmp_path.iterdir()] == ["counter_0.db"]
    count_in(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", no_room)
        assert "seen_total 4.0\n" in metrics.page()
    assert "seen_total 4.0\n" in metrics.page()


def test_the_file_of_the_dead_takes_its_room_before_it_is_mapped(tmp_path: Path) -> None:
    count_in(tmp_path)
    WorkerMetrics(tmp_path, say=pytest.fail).page()
    (file,) = tmp_path.iterdir()
    assert file.stat().st_blocks * 512 >= file.stat().st_size


def test_a_nearly_full_disk_is_said_once_and_so_is_its_end(tmp_path: Path) -> None:
    said: list[str] = []
    disk = Disk(tmp_path, say=said.append, low_bytes=0)
    assert disk.warnings() == []
    disk._low_bytes = 1 << 62
    assert [len(disk.warnings()) for _ in range(2)] == [1, 1]
    disk._low_bytes = 0
    assert disk.warnings() == []
    assert [text.startswith("warning: ") for text in said] == [True, False]
    assert said[1].endswith("of disk free again")


def test_a_folder_that_was_deleted_is_not_called_a_full_disk(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "gone", say=lambda _: None)
    assert disk.warnings() == [
        f"{tmp_path}/gone was deleted: a worker that dies cannot start again, only a new server can"
    ]


class Lines(list[bytes]):
    def write(self, data: bytes) -> None:
        self.append(data)

    def flush(self) -> None:
        """Does nothing: there is no buffer."""


def test_a_full_disk_takes_the_copy_of_the_log_and_not_the_log(tmp_path: Path) -> None:
    lines = Lines()
    log = LogFile(lines, tmp_path / "log")
    log.write(b"one\n")
    log._file.close()
    log._file = open("/dev/full", "wb", buffering=0)  # noqa: SIM115
    log.write(b"two\n")
    assert lines == [b"one\n", b"two\n"]


def test_a_log_file_that_cannot_be_rotated_takes_the_copy_and_not_the_log(tmp_path: Path) -> None:
    lines, file = Lines(), tmp_path / "logs/log"
    file.parent.mkdir()
    log = LogFile(lines, file, piece_bytes=5)
    log.write(b"one\n")
    shutil.rmtree(file.parent)
    log.write(b"two\n")
    log.write(b"three\n")
    assert lines == [b"one\n", b"two\n", b"three\n"]
    file.parent.mkdir()
    log.write(b"four\n")
    assert file.read_bytes() == b"four\n"
