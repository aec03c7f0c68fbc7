import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from specs import ROOT

from marina.config.errors import InputError
from marina.server.system import machine
from marina.server.system.processes import identify, resident_bytes
from marina.server.system.rundir import OWNER_VARIABLE, create_run_directory
from marina.server.system.sockets import Sockets, read_sockets
from marina.server.watching.worker_metrics import WorkerMetrics


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose path is short enough for a socket; that of tmp_path may be too long."""
    with tempfile.TemporaryDirectory(prefix="m-") as folder:
        yield Path(folder)


def test_living_servers_keep_their_directories(short_folder: Path) -> None:
    first, second = create_run_directory(short_folder), create_run_directory(short_folder)
    assert first.path != second.path
    assert first.path.is_dir()
    assert first.path.stat().st_mode & 0o777 == 0o700
    first.close()
    second.close()
    assert list(short_folder.iterdir()) == []


def test_a_page_that_is_made_while_a_server_ends_leaves_no_directory(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, remove = create_run_directory(short_folder), os.rmdir

    def write_and_remove(path: str, **options: int) -> None:
        with suppress(FileNotFoundError):
            (directory.path / "counter_0.db").touch()
        remove(path, **options)

    monkeypatch.setattr(os, "rmdir", write_and_remove)
    directory.close()
    monkeypatch.undo()
    assert list(short_folder.iterdir()) == []


def test_a_directory_in_use_is_locked_for_those_who_clean_up(short_folder: Path) -> None:
    directory = create_run_directory(short_folder)
    cleaner = os.open(directory.path, os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(cleaner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    directory.close()
    fcntl.flock(cleaner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(cleaner)


def test_a_relative_tmpdir_is_the_same_folder_for_java(short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(short_folder)
    monkeypatch.setenv("TMPDIR", ".")
    directory = create_run_directory()
    assert directory.path.parent == short_folder
    directory.close()


@pytest.mark.slow
def test_leftovers_of_a_dead_server_are_removed_with_its_processes(short_folder: Path) -> None:
    code = (
        "import pathlib, os, sys; from marina.server.system.rundir import create_run_directory;"
        "print(create_run_directory(pathlib.Path(sys.argv[1])).path, flush=True); os._exit(9)"
    )
    command = [sys.executable, "-c", code, str(short_folder)]
    crashed = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    left = Path(crashed.stdout.strip())
    assert left.is_dir()
    orphan = subprocess.Popen(["sleep", "600"], env={OWNER_VARIABLE: str(left)})
    other = subprocess.Popen(["sleep", "600"], env={OWNER_VARIABLE: str(left) + "x"})
    create_run_directory(short_folder).close()
    assert identify(orphan.pid) is None
    assert other.poll() is None
    assert not left.exists()
    other.kill()
    other.wait()


def test_folder_that_cannot_be_written_to_is_an_error() -> None:
    gone = Path(tempfile.gettempdir(), "gone")
    with pytest.raises(InputError) as caught:
        create_run_directory(gone)
    hint = "set TMPDIR to a writable folder"
    assert str(caught.value) == f"{gone}: cannot create temporary files: No such file or directory\n\nhint: {hint}"


def test_sockets_of_a_port_are_counted_from_the_kernels_table(tmp_path: Path) -> None:
    head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    rows = (
        "   0: 00000000:1F90 00000000:0000 0A 00000000:00000002 00:0 0 0 0\n"
        "   1: 0100007F:1F90 0100007F:D431 01 00000010:00000000 00:0 0 0 0\n"
        "   2: 0100007F:1F90 0100007F:D432 08 00000000:0000000F 00:0 0 0 0\n"
        "   3: 0100007F:1F90 0100007F:D433 06 00000000:00000000 00:0 0 0 0\n"
        "   4: 0100007F:1F91 0100007F:D434 01 00000001:00000001 00:0 0 0 0\n"
        "   6: 0100007F:1F90 0100007F:D435 03 00000000:00000000 00:0 0 0 0\n"
        "   5: 0100007F:D431 0100007F:1F90 01 00000007:00000000 00:0 0 0 0\n"
    )
    (tmp_path / "tcp").write_text(head + rows)
    tables = (tmp_path / "tcp", tmp_path / "no tcp6")
    assert read_sockets(0x1F90, tables) == Sockets(listening=True, waiting=3, connected=2, unread=15, undelivered=1)
    assert read_sockets(80, tables) == Sockets()


def test_process_is_known_by_its_start_too() -> None:
    process = subprocess.Popen(["sleep", "600"])
    identity = identify(process.pid)
    assert identity is not None
    assert identity.alive
    assert resident_bytes(process.pid) > 0
    process.kill()
    process.wait()
    assert not identity.alive
    assert resident_bytes(process.pid) == 0


WRITER = """
import os, sys
from prometheus_client import Counter, Gauge
Counter("seen", "Seen").inc(float(sys.argv[1]))
Gauge("held", "Held", multiprocess_mode="livesum").set(1)
"""


@pytest.mark.slow
def test_counters_of_dead_workers_are_kept_in_one_file(tmp_path: Path) -> None:
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    metrics = WorkerMetrics(tmp_path, say=pytest.fail)
    assert metrics.page() == ""
    for amount in ("1", "2", "4"):
        subprocess.run([sys.executable, "-c", WRITER, amount], env=environment, check=True)
        metrics.page()
    page = metrics.page()
    assert "seen_total 7.0\n" in page
    assert "held" not in page
    assert [file.name for file in tmp_path.iterdir()] == ["counter_0.db"]


@pytest.mark.parametrize("pid", [os.getpid(), 2**30], ids=["of a worker that begins", "of one that has died"])
def test_an_empty_file_of_a_worker_takes_no_number_of_the_others(tmp_path: Path, pid: int) -> None:
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", WRITER, "2"], env=environment, check=True)
    (tmp_path / f"counter_{pid}.db").touch()
    assert "seen_total 2.0\n" in WorkerMetrics(tmp_path, say=pytest.fail).page()


@pytest.mark.parametrize("name", [f"counter_{os.getpid()}", f"counter_{2**30}", "counter_0"])
@pytest.mark.parametrize(
    "content", [b"x" * 4096, b"\xff" * 4096, b"\x40", b"\x40\0\0\0" * 20, b"\x28\0\0\0\0\0\0\0\x02\0\0\0[]" + b" " * 24]
)
def test_an_unreadable_file_takes_no_number_of_the_others_and_is_named_once(
    tmp_path: Path, name: str, content: bytes
) -> None:
    environment, said = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}, list[str]()
    metrics = WorkerMetrics(tmp_path, say=said.append)
    subprocess.run([sys.executable, "-c", WRITER, "2"], env=environment, check=True)
    (tmp_path / f"{name}.db").write_bytes(content)
    assert ["seen_total 2.0\n" in metrics.page() for _ in range(2)] == [True, True]
    (warning,) = said
    assert warning.startswith("warning: the metrics file counter_")
    assert "cannot be read, so what it counted is not on /metrics any more: " in warning


@pytest.mark.parametrize("installed", ["2.13.0", "2.13.0+cpu", "2.13.0+cu130"])
def test_every_build_of_torch_has_the_version_that_packages_need(
    installed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.dist-info").mkdir()
    text = f"Metadata-Version: 2.1\nName: torch\nVersion: {installed}\n"
    (tmp_path / "torch.dist-info/METADATA").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert machine._torch_version() == "2.13.0"


def test_the_version_is_the_one_that_a_package_is_made_with() -> None:
    import torch

    from marina.handlers.machine import machine_key

    assert machine._torch_version() == machine_key(torch.device("cpu"))["torch"]
