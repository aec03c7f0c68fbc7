"""Handles of processes: they signal the end of a process, and none is left open."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from specs import ROOT

from marina.server.system.exits import Exit
from marina.server.system.processes import ProcessHandles, ProcessIdentity, identify
from marina.server.system.signals import Signals

# Far longer than a test takes: if a wait takes this long, nothing woke it.
_LONG_S = 3600.0


@pytest.fixture
def sleeping() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "3600"])
    yield process
    process.kill()
    process.wait()


def identity(process: subprocess.Popen[bytes]) -> ProcessIdentity:
    identified = identify(process.pid)
    assert identified
    return identified


def open_file_count() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_the_end_of_a_process_ends_the_wait(sleeping: subprocess.Popen[bytes]) -> None:
    signals, handles = Signals(), ProcessHandles()
    try:
        ends = handles.for_processes([identity(sleeping)])
        assert ends
        signals.wait(0, ends=ends)
        sleeping.kill()
        signals.wait(_LONG_S, ends=ends)
        assert not identify(sleeping.pid)
    finally:
        handles.close()
        signals.close()


def test_a_terminal_that_is_closed_stops_once_however_often_it_says_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also if the tests run under nohup
    signals = Signals()
    try:
        for number in (signal.SIGHUP, signal.SIGHUP, signal.SIGINT):
            os.kill(os.getpid(), number)
            signals.wait(_LONG_S)
        assert signals.stops == [signal.SIGHUP, signal.SIGINT]
    finally:
        signals.close()
        signal.signal(signal.SIGHUP, before)


def test_a_signal_that_other_servers_take_for_log_rotation_ends_nothing() -> None:
    signals = Signals()
    try:
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT):
            os.kill(os.getpid(), number)
            signals.wait(_LONG_S)
        assert signals.stops == [signal.SIGQUIT]
    finally:
        signals.close()


def test_a_signal_is_not_lost_while_the_handlers_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    set_handler, before = signal.signal, signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def set_and_stop(number: int, handler: Any) -> Any:
        old = set_handler(number, handler)
        if number == signal.SIGTERM and callable(handler):
            os.kill(os.getpid(), signal.SIGTERM)
        return old

    with monkeypatch.context() as changed:
        changed.setattr(signal, "signal", set_and_stop)
        signals = Signals()
    try:
        signals.wait(0)
        assert signals.stops == [signal.SIGTERM]
    finally:
        signals.close()
        signal.signal(signal.SIGTERM, before)


def test_a_server_that_is_still_imported_stops_when_it_is_told(tmp_path: Path) -> None:
    # The first thing that `config` imports, which never ends here.
    (tmp_path / "pydantic.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(3600)\n")
    command = [sys.executable, "-m", "marina.server", "spec.yaml", "--mar", "digits.mar"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"importing\n"
        process.terminate()
        assert process.wait(60) == Exit.DRAINED


def test_the_end_of_its_terminal_is_nothing_to_a_server_under_nohup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signals = Signals()
    try:
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signals.close()
        signal.signal(signal.SIGHUP, before)


def test_handles_are_kept_while_wanted_and_closed_after(sleeping: subprocess.Popen[bytes]) -> None:
    handles, before = ProcessHandles(), open_file_count()
    first = handles.for_processes([identity(sleeping)])
    assert handles.for_processes([identity(sleeping)]) == first
    assert open_file_count() == before + 1
    assert handles.for_processes([]) == []
    assert open_file_count() == before


def test_one_that_has_ended_or_was_replaced_has_none(sleeping: subprocess.Popen[bytes]) -> None:
    handles, before = ProcessHandles(), open_file_count()
    assert handles.for_processes([ProcessIdentity(sleeping.pid, started=1)]) is None
    sleeping.kill()
    os.waitid(os.P_PID, sleeping.pid, os.WEXITED | os.WNOWAIT)
    assert handles.for_processes([ProcessIdentity(sleeping.pid, started=1)]) is None
    handles.close()
    assert open_file_count() == before
