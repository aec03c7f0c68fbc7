"""What a worker writes to disk: it is removed after the worker, and space for metrics is reserved first."""

import errno
import os
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


def test_what_torch_unpacks_goes_when_it_is_loaded(temporary: Path) -> None:
    with unpacking():
        own = Path(os.environ["TMPDIR"])
        (own / "aotinductor_x").mkdir()
    assert own == temporary / f"worker-{os.getpid()}"
    assert os.environ["TMPDIR"] == str(temporary)
    assert list(temporary.iterdir()) == []


def test_what_the_dead_left_goes_at_the_next_load(temporary: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    others = {f"worker-{os.getppid()}", "worker-of-mine"}
    for name in {f"worker-{dead.pid}", f"worker-{os.getpid()}"} | others:
        (temporary / name / "aotinductor_x").mkdir(parents=True)
    with unpacking():
        assert list(Path(os.environ["TMPDIR"]).iterdir()) == []
    assert {path.name for path in temporary.iterdir()} == others


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
