"""Real processes that are paused and resumed, even if the process that paused them is killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from marina.loadtest.comparing.sides import paused
from marina.loadtest.measuring import cpu_seconds

TREE = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: sum(range(1000))'])"


def states(pid: int) -> set[str]:
    """The states of a process and its children in Linux; `T` is stopped."""
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


def test_a_server_is_paused_with_its_children_and_resumed(tree: subprocess.Popen[bytes]) -> None:
    with paused(tree.pid):
        awaited(tree.pid, still=True)
        before = cpu_seconds(tree.pid)
        time.sleep(0.1)
        assert cpu_seconds(tree.pid) == before
    awaited(tree.pid, still=False)


def test_cpu_time_is_finer_than_a_tick() -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        while not (spent := cpu_seconds(sleeper.pid)):
            time.sleep(0.001)
        assert spent * 100 % 1
    finally:
        sleeper.communicate()


@pytest.mark.slow
def test_cpu_time_of_a_child_that_has_ended_counts() -> None:
    burns = "import time\nwhile time.process_time() < 0.3: pass"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burns!r}]); print(flush=True); input()"
    command = [sys.executable, "-c", parent]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        assert cpu_seconds(process.pid) > 0.3


@pytest.mark.slow
def test_it_is_resumed_if_the_process_that_paused_it_is_killed(tree: subprocess.Popen[bytes]) -> None:
    code = "import sys, time\nfrom marina.loadtest.comparing.sides import paused\n"
    code += "with paused(int(sys.argv[1])): time.sleep(60)"
    holder = subprocess.Popen([sys.executable, "-c", code, str(tree.pid)])
    awaited(tree.pid, still=True)
    holder.kill()
    holder.wait()
    awaited(tree.pid, still=False)


def test_a_server_that_was_not_started_here_is_left_alone() -> None:
    with paused(None):
        pass
