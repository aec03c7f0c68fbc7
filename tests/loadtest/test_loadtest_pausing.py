"""Real processes that stand still and go on, whatever becomes of who let them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.comparing.pausing import paused
from loadtest.measuring import cpu_seconds

TREE = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: sum(range(1000))'])"


def states(pid: int) -> set[str]:
    """Of a process and its children, as Linux has them: `T` stands still."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()[0] for each in (pid, *children)}


def awaited(pid: int, *, still: bool) -> None:
    deadline = time.monotonic() + 30
    while (states(pid) == {"T"}) is not still:
        assert time.monotonic() < deadline, states(pid)
        time.sleep(0.01)


@pytest.fixture
def tree() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", TREE], start_new_session=True)
    while not Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        time.sleep(0.01)
    yield process
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_a_server_stands_still_with_its_children_and_goes_on(tree: subprocess.Popen[bytes]) -> None:
    with paused(tree.pid):
        awaited(tree.pid, still=True)
        before = cpu_seconds(tree.pid)
        time.sleep(0.1)
        assert cpu_seconds(tree.pid) == before
    awaited(tree.pid, still=False)


def test_cpu_time_is_told_finer_than_a_tick() -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        while not (spent := cpu_seconds(sleeper.pid)):
            time.sleep(0.001)
        assert spent * 100 % 1
    finally:
        sleeper.communicate()


@pytest.mark.slow
def test_it_goes_on_when_who_let_it_stand_still_is_killed(tree: subprocess.Popen[bytes]) -> None:
    code = (
        "import sys, time; from loadtest.comparing.pausing import paused\nwith paused(int(sys.argv[1])): time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(tree.pid)])
    awaited(tree.pid, still=True)
    holder.kill()
    holder.wait()
    awaited(tree.pid, still=False)


def test_a_server_of_somebody_else_is_left_alone() -> None:
    with paused(None):
        pass
