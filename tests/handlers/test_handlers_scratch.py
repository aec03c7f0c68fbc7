"""What a worker writes to disk: it is removed after the worker, and space for metrics is reserved first."""

import errno
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from marina.handlers.scratch import unpacking

ROOT = Path(__file__).parents[2]
SERVES = """
import os
from prometheus_client import values
if {full}:
    def no_room(*_):
        raise OSError(28, "No space left on device")
    os.posix_fallocate = no_room
from fakes import *
from marina.handlers.tensor import TensorHandler
from pathlib import Path
handler = start(TensorHandler(), write_package(Path({folder!r}), TinyDouble, ONE_INPUT))
(reply,) = ask(handler, b"[[0,1,2],[3,4,5]]")
print(reply.status)
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


KILLED = """
import os, signal
from marina.handlers.scratch import unpacking
with unpacking():
    os.mkdir(os.environ["TMPDIR"] + "/aotinductor_x")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def left_by_a_killed_worker(temporary: Path) -> Path:
    before = set(temporary.iterdir())
    assert subprocess.run([sys.executable, "-c", KILLED], cwd=ROOT).returncode == -signal.SIGKILL
    (folder,) = set(temporary.iterdir()) - before
    return folder


def test_what_torch_unpacks_goes_when_it_is_loaded(temporary: Path) -> None:
    with unpacking():
        own = Path(os.environ["TMPDIR"])
        (own / "aotinductor_x").mkdir()
        assert stat.S_IMODE(own.stat().st_mode) == 0o700
    assert own.parent == temporary
    assert os.environ["TMPDIR"] == str(temporary)
    assert list(temporary.iterdir()) == []


def test_what_the_dead_left_goes_at_the_next_load(temporary: Path) -> None:
    left_by_a_killed_worker(temporary)
    with unpacking():
        (own,) = temporary.iterdir()
        assert os.environ["TMPDIR"] == str(own)


def test_the_folder_of_a_living_worker_stays(temporary: Path) -> None:
    with unpacking():
        first = Path(os.environ["TMPDIR"])
        os.environ["TMPDIR"] = str(temporary)
        with unpacking():
            assert first.is_dir()
            assert os.environ["TMPDIR"] != str(first)


def test_folders_of_other_programs_stay(temporary: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    for name in (f"worker-{dead.pid}", f"worker-{os.getpid()}", "marina-worker-mine"):
        (temporary / name).mkdir(mode=0o700)
    before = {path.name for path in temporary.iterdir()}
    with unpacking():
        pass
    assert {path.name for path in temporary.iterdir()} == before


@pytest.mark.parametrize("how", ["open to others", "a link", "of another user"])
def test_a_folder_that_no_worker_would_have_left_stays(
    how: str, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = left_by_a_killed_worker(temporary)
    if how == "open to others":
        folder.chmod(0o755)
    elif how == "a link":
        folder = folder.rename(temporary / "mine")
        (temporary / "marina-worker-link").symlink_to(folder)
    else:
        monkeypatch.setattr(os, "getuid", lambda: 12345)
    with unpacking():
        pass
    assert (folder / "aotinductor_x").is_dir()


def test_a_folder_that_another_user_made_beforehand_is_not_used(temporary: Path) -> None:
    """Libraries are loaded from it: whoever owns it could change them."""
    (temporary / f"worker-{os.getpid()}").mkdir(mode=0o777)
    with unpacking():
        assert list(Path(os.environ["TMPDIR"]).glob("[!.]*")) == []
        assert Path(os.environ["TMPDIR"]) != temporary / f"worker-{os.getpid()}"


def test_the_folder_is_left_when_loading_fails(temporary: Path) -> None:
    with pytest.raises(OSError, match="full"), unpacking():
        raise OSError(errno.ENOSPC, "full")
    assert list(temporary.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("full", [False, True])
def test_metrics_have_their_room_or_stay_in_the_worker(tmp_path: Path, full: bool) -> None:
    metrics, package = tmp_path / "metrics", tmp_path / "package"
    package.mkdir()
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(metrics), "PYTHONPATH": "tests"}
    code = SERVES.format(full=full, folder=str(package))
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stdout == "200\n", done.stderr
    blocks = {file.name.rpartition("_")[0]: file.stat().st_blocks * 512 for file in metrics.iterdir()}
    if full:
        assert blocks == {}
    else:
        assert set(blocks) == {"counter", "histogram", "gauge_livemax", "gauge_liveall"}
        assert min(blocks.values()) >= 1 << 17
