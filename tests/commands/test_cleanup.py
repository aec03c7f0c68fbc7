"""Long work leaves no process and no temporary file, however it ends."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from specs import ROOT

# These tests start processes and wait for their end.
pytestmark = pytest.mark.slow

# Work with a child, and a grandchild in another session, as in the process pools of compilers.
WORK = """
import os, signal, subprocess, sys, tempfile
from marina.cleanup import cleanup_on_exit
try:
    with cleanup_on_exit():
        open(os.path.join(tempfile.mkdtemp(), "file"), "w").close()
        inner = "import subprocess, sys; subprocess.Popen(['sleep', '600'], start_new_session=True).wait()"
        child = subprocess.Popen([sys.executable, "-c", inner], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        print("working", flush=True)
        {ending}
except KeyboardInterrupt:
    sys.exit(130)
"""


def eventually(holds: Callable[[], bool]) -> bool:
    until = time.monotonic() + 60
    while not holds() and time.monotonic() < until:
        time.sleep(0.05)
    return holds()


def processes_in(folder: Path) -> list[str]:
    """Processes whose environment names a folder below this one."""
    mark, there = f"MARINA_RUN={folder}".encode(), []
    for file in Path("/proc").glob("[0-9]*/environ"):
        try:
            there += [file.parent.name] if mark in file.read_bytes() else []
        except OSError:
            continue
    return there


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Callable[[str], "subprocess.Popen[str]"]]:
    started: list[subprocess.Popen[str]] = []

    def start(ending: str) -> "subprocess.Popen[str]":
        environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", WORK.replace("{ending}", ending)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        started.append(process)
        assert process.stdout
        assert process.stdout.readline() == "working\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout
        process.stdout.close()


@pytest.mark.usefixtures("hang_ups")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_after_a_signal_nothing_is_left(
    number: int, work: Callable[[str], "subprocess.Popen[str]"], tmp_path: Path
) -> None:
    process = work("child.wait()")
    assert eventually(lambda: len(processes_in(tmp_path)) >= 2)
    process.send_signal(number)
    assert process.wait(60) == 130
    assert processes_in(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_at_the_end_nothing_is_left(work: Callable[[str], "subprocess.Popen[str]"], tmp_path: Path) -> None:
    assert work("pass").wait(60) == 0
    assert processes_in(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_what_work_left_that_was_killed_is_removed_by_the_next(
    work: Callable[[str], "subprocess.Popen[str]"], tmp_path: Path
) -> None:
    killed = work("child.wait()")
    assert eventually(lambda: len(processes_in(tmp_path)) >= 2)
    killed.kill()
    assert killed.wait(60) == -signal.SIGKILL
    going_on = work("child.wait()")
    assert eventually(lambda: len(processes_in(tmp_path)) == 2)
    assert len(list(tmp_path.glob("marina-*.lock"))) == 1
    going_on.terminate()
    assert going_on.wait(60) == 130
    assert list(tmp_path.iterdir()) == []
