"""Real processes that are paused and resumed, and that end if the process that started them is killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
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
def test_it_ends_although_it_is_paused_if_the_process_that_started_it_is_killed() -> None:
    code = (
        "import subprocess, sys, time\nfrom marina.loadtest.comparing.sides import paused\n"
        "from marina.loadtest.running.target import _prepare_process\n"
        "server = subprocess.Popen(['sleep', '600'], preexec_fn=lambda: _prepare_process(None))\n"
        "with paused(server.pid): print(server.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as holder:
        assert holder.stdout
        pid = int(holder.stdout.readline())
        awaited(pid, still=True)
        holder.kill()
    deadline = time.monotonic() + 30
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_server_that_was_not_started_here_is_left_alone() -> None:
    with paused(None):
        pass
