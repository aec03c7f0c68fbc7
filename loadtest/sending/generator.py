"""Starts the process that sends, follows what it says, and returns what it measured.

It is a process of its own even for one: importing Locust patches the process it is in, and its share of the processor
is part of the verdict.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue

from config.errors import InputError, MarinaError
from loadtest.measuring import Beat, Measurement, Second
from loadtest.sending.log_lines import is_end, record_in, second_in
from loadtest.sending.plan import LoadPlan

OnSecond = Callable[[int, Second, Sequence[Beat]], None]
Lines = SimpleQueue[str | None]


def generate(plan: LoadPlan, on_second: OnSecond = lambda *_: None) -> Measurement:
    """Runs a plan, one process for each of its parts; after Ctrl-C the measurement ends there."""
    with standing_generator() as generator:
        return generator.generate(plan, on_second)


@contextmanager
def standing_generator() -> Iterator[Generator]:
    """A generator for one plan after the other: to start it takes longer than a short run."""
    with _sender() as (process, lines):
        yield Generator(process, lines)


class Generator:
    """The process that sends."""

    def __init__(self, process: subprocess.Popen[str], lines: Lines) -> None:
        self._process, self._lines = process, lines
        self.pid = process.pid

    def generate(self, plan: LoadPlan, on_second: OnSecond) -> Measurement:
        """Runs a plan; after Ctrl-C the measurement ends there, and no other plan can be run."""
        record: list[str] = []
        interrupted = False
        self._order(plan)
        try:
            _follow(self._lines, on_second, record)
        except KeyboardInterrupt:
            interrupted = True
            _end_orders(self._process)
            _follow(self._lines, on_second, record)
        if interrupted and not record:
            # It had not begun.
            raise KeyboardInterrupt
        try:
            measured, _ = record_in(record)
        except InputError as err:
            raise MarinaError(
                "the process that sends the load ended without a result; its last words are above"
            ) from err
        return measured.model_copy(update={"interrupted": interrupted})

    def _order(self, plan: LoadPlan) -> None:
        assert self._process.stdin is not None
        # One that has ended gives no record, and that is said.
        with suppress(BrokenPipeError):
            self._process.stdin.write(plan.model_dump_json() + "\n")
            self._process.stdin.flush()


def _follow(lines: Lines, on_second: OnSecond, record: list[str]) -> None:
    """Tells every second, and keeps all other lines, until the plan is done or the process has ended."""
    while (line := lines.get()) is not None and not is_end(line):
        second = second_in(line)
        if second is None:
            record.append(line)
        else:
            on_second(*second)


@contextmanager
def _sender() -> Iterator[tuple[subprocess.Popen[str], Lines]]:
    """The process, and its lines, which a thread reads: Ctrl-C must not cut one in two."""
    lines: Lines = SimpleQueue()

    def read() -> None:
        assert process.stdout is not None
        with process.stdout as stream:
            for line in stream:
                lines.put(line)
        lines.put(None)

    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "loadtest.sending.sender"]
    environment = os.environ | {"PYTHONPATH": path}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield process, lines
    finally:
        _end_orders(process)
        if process.poll() is None:
            process.kill()
        process.wait()
        reader.join()


def _end_orders(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.close()
