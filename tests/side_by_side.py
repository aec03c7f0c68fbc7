"""Tests in several processes, and a verdict that the machine's noise does not change: `pytest --processes N`.

The files are read and the tests collected once. Then processes are forked that share the files: most tests that start a
server wait longer than they compute. Tests marked `alone`, whose measurements need the machine, are set aside and run
after that, one after another, together with what failed: what passes then is named and is no failure.
"""

import contextlib
import os
import signal
import sys
import traceback
import warnings
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from _pytest.terminal import TerminalReporter

# What a process says: that it wants a test, which one it has run, what came of it, a warning, or why it ends.
NEXT, RAN, REPORT, WARNING, ERROR = "next", "ran", "report", "warning", "error"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--processes", type=int, metavar="N", help="run the test files in N processes, then those alone")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    processes = session.config.getoption("processes")
    if not processes or session.testsfailed or session.config.option.collectonly:
        return None  # as pytest does it
    SideBySide(session).run(processes)
    return True


def longest_first(items: Sequence[pytest.Item], aside: Sequence[int]) -> list[list[int]]:
    """The places of the tests of each file, but for those set aside. Files of long tests come first, so that no process
    is left with one of them at the end."""
    files: dict[Path, list[int]] = {}
    marks: dict[Path, int] = {}
    for place, item in enumerate(items):
        if place not in aside:
            files.setdefault(item.path, []).append(place)
            marked = sum(item.get_closest_marker(mark) is not None for mark in ("e2e", "slow"))
            marks[item.path] = max(marks.get(item.path, 0), marked)
    return [files[path] for path in sorted(files, key=lambda path: -marks[path])]


class InTheChild(BaseException):
    """Leaves the loop of the parent in the process that was forked there, after its tests."""


@dataclass
class Child:
    """A process that runs tests: those that it has been given, the one that it runs before the others, and those of its
    file that follow."""

    name: str
    pid: int
    following: deque[int]
    given: list[int] = field(default_factory=list)
    death: str = "the process of this test has died"


class SideBySide:
    """Gives the tests of a session to processes, and their reports to pytest."""

    def __init__(self, session: pytest.Session) -> None:
        self.session = session
        self.hook = session.config.hook
        self.files: deque[list[int]] = deque()
        self.children: dict[Connection, Child] = {}
        self.forked = 0
        # Whether what fails is tried once more. Who asked to stop at a failure gets it at once.
        self.once_more = not session.config.getvalue("maxfail")
        # The first report of each failure that is.
        self.failed: dict[int, pytest.TestReport] = {}

    def run(self, processes: int) -> None:
        items = self.session.items
        alone = [place for place, item in enumerate(items) if item.get_closest_marker("alone")]
        self.files.extend(longest_first(items, alone))
        try:
            self._run_files(min(processes, len(self.files)))
            self.once_more = False
            if alone or self.failed:
                terminal = self._terminal()
                terminal.ensure_newline()
                terminal.write_line(f"{len(alone)} set aside, {len(self.failed)} failed: now with nothing beside them")
                self.files.append([*alone, *self.failed])
                self._run_files(1)
        except InTheChild:
            return
        self._name_those_that_passed_alone()

    def _run_files(self, processes: int) -> None:
        """Runs the files that wait in so many processes, until all have ended."""
        try:
            for _ in range(processes):
                self._fork(deque())
            while self.children:
                for connection in wait(list(self.children)):
                    assert isinstance(connection, Connection)
                    try:
                        self._take(connection, *connection.recv())
                    except (EOFError, ConnectionError):
                        self._ended(connection)
        finally:  # after Ctrl-C, or an error here
            for child in self.children.values():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGINT)
            for connection in list(self.children):
                # It may have something to say while it takes down what it has set up.
                with contextlib.suppress(EOFError, ConnectionError):
                    while True:
                        connection.recv()
                os.waitpid(self.children.pop(connection).pid, 0)
        if self.session.shouldfail:
            raise self.session.Failed(self.session.shouldfail)
        if self.session.shouldstop:
            raise self.session.Interrupted(self.session.shouldstop)

    def _fork(self, following: deque[int]) -> None:
        ours, theirs = Pipe()
        self.forked += 1
        name = f"p{self.forked}"
        # All have their folders in one, which is made before the first is forked.
        folder = self.session.config._tmp_path_factory.getbasetemp() / name  # type: ignore[attr-defined]
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            theirs.close()
            self.children[ours] = Child(name, pid, following)
            return
        for connection in (ours, *self.children):
            connection.close()
        self.children.clear()
        run_in_child(self.session, theirs, name, folder)
        raise InTheChild

    def _take(self, connection: Connection, kind: str, content: Any) -> None:
        """Takes what a child says, and answers it where it asks."""
        child = self.children[connection]
        if kind == NEXT:
            stop = self.session.shouldfail or self.session.shouldstop
            if self.files and not child.following and not stop:
                child.following.extend(self.files.popleft())
            place = child.following.popleft() if child.following and not stop else None
            if place is not None:
                child.given.append(place)
            connection.send(place)
        elif kind == RAN:
            child.given.remove(content)
        elif kind == ERROR:
            child.death = content
        elif kind == REPORT:
            self._report(child, self.hook.pytest_report_from_serializable(config=self.session.config, data=content))
        else:
            text, category, file, line, where = content
            message = warnings.WarningMessage(text, category, file, line)
            self.hook.pytest_warning_recorded.call_historic(kwargs={"warning_message": message, **where})

    def _ended(self, connection: Connection) -> None:
        """A child has ended: if it was in a test, that has failed, and another process goes on with its file."""
        child = self.children.pop(connection)
        os.waitpid(child.pid, 0)
        connection.close()
        if child.given:
            item = self.session.items[child.given[0]]
            self._report(child, pytest.TestReport(item.nodeid, item.location, {}, "failed", child.death, "call"))
            self._fork(deque([*child.given[1:], *child.following]))

    def _report(self, child: Child, report: pytest.TestReport) -> None:
        if report.failed and self.once_more:
            self.failed.setdefault(child.given[0], report)
            return
        # Where pytest looks for the name of another process, and for a line about it.
        gateway = SimpleNamespace(id=child.name)
        report.node = SimpleNamespace(gateway=gateway, _workerinfocache="")  # type: ignore[attr-defined]
        self.hook.pytest_runtest_logreport(report=report)

    def _name_those_that_passed_alone(self) -> None:
        terminal = self._terminal()
        still = {report.nodeid for outcome in ("failed", "error") for report in terminal.getreports(outcome)}
        passed = [report for report in self.failed.values() if report.nodeid not in still]
        if passed:
            terminal.ensure_newline()
            terminal.write_sep("-", "failed beside others, passed alone")
            for report in passed:
                terminal.write_line(report.nodeid, bold=True)
                terminal.write_line(report.longreprtext)

    def _terminal(self) -> TerminalReporter:
        terminal = self.session.config.pluginmanager.get_plugin("terminalreporter")
        assert isinstance(terminal, TerminalReporter)
        return terminal


def run_in_child(session: pytest.Session, parent: Connection, name: str, folder: Path) -> None:
    """Runs the tests that the parent names and tells it what comes of them. Then pytest ends as in any process."""
    os.setpgid(0, 0)  # Ctrl-C comes from the parent, once
    config = session.config
    # By this name pytest knows a process that is not the only one: it writes no files about all tests.
    config.workerinput = {"workerid": name}  # type: ignore[attr-defined]
    config.get_terminal_writer()._file = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  until the end
    # The files that catch what is printed are the parent's.
    capture = config.pluginmanager.get_plugin("capturemanager")
    assert capture is not None
    capture.stop_global_capturing()
    capture.start_global_capturing()
    capture.suspend_global_capture()
    folder.mkdir()
    config._tmp_path_factory._basetemp = folder  # type: ignore[attr-defined]
    messenger = Messenger(config)
    config.pluginmanager.register(messenger)
    messenger.parent = parent  # not before: pytest tells each new plugin all warnings that there were
    try:
        place = place_from(parent)
        while place is not None:
            following = NextItem(session, parent)
            config.hook.pytest_runtest_protocol(item=session.items[place], nextitem=following)
            parent.send((RAN, place))
            place = following.place
    except (EOFError, ConnectionError):
        pass  # the parent has died
    except Exception:  # not of a test, but of pytest or a plugin
        parent.send((ERROR, traceback.format_exc()))
        raise


def place_from(parent: Connection) -> int | None:
    """The place of the test that the parent gives next; None if there is no more."""
    parent.send((NEXT, None))
    place = parent.recv()
    assert place is None or isinstance(place, int)
    return place


@dataclass
class NextItem:
    """The test after another one. It is asked for when pytest takes down what the next one does not use: until then,
    another process may take its file."""

    session: pytest.Session
    parent: Connection

    @cached_property
    def place(self) -> int | None:
        return place_from(self.parent)

    def listchain(self) -> list[pytest.Item | pytest.Collector]:
        return [] if self.place is None else self.session.items[self.place].listchain()


class Messenger:
    """A plugin that tells the parent what pytest tells here."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.parent: Connection | None = None

    def _tell(self, kind: str, content: object) -> None:
        if self.parent is not None:
            self.parent.send((kind, content))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        content = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        self._tell(REPORT, content)

    def pytest_warning_recorded(
        self,
        warning_message: warnings.WarningMessage,
        when: str,
        nodeid: str,
        location: tuple[str, int, str] | None,
    ) -> None:
        seen = warning_message
        where = {"when": when, "nodeid": nodeid, "location": location}
        self._tell(WARNING, (str(seen.message), seen.category, seen.filename, seen.lineno, where))
