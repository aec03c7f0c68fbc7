"""Starts the process that sends the load, follows its output, and returns what it measured.

Even a single sender is a separate process: importing Locust patches the process it is in, and the verdict depends on
how busy the sending process is."""

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue

from marina.config.errors import InputError, MarinaError
from marina.config.machine import end_with_parent
from marina.loadtest.measuring import GeneratorHealth, Measurement, Second
from marina.loadtest.sending.log_lines import is_end, read_record_lines, read_second_line
from marina.loadtest.sending.plan import LoadPlan
from marina.loadtest.sending.processes import GATHER_TIMEOUT_S, child_environment, ignore_interrupts

OnSecond = Callable[[int, Second, Sequence[GeneratorHealth]], None]
Lines = SimpleQueue[str | None]

# After Ctrl-C, only requests that are already open are waited for.
_END_WITHIN_S = 30.0


def generate(plan: LoadPlan, on_second: OnSecond = lambda *_: None) -> Measurement:
    """Runs a plan, with one process for each of its parts; Ctrl-C ends the measurement at that point."""
    with running_generator() as generator:
        return generator.generate(plan, on_second)


@contextmanager
def running_generator() -> Iterator["Generator"]:
    """A generator that runs several plans, one after another: starting one takes longer than a short run."""
    with _sender() as (process, lines):
        yield Generator(process, lines)


class Generator:
    """The process that sends the load."""

    def __init__(self, process: subprocess.Popen[str], lines: Lines) -> None:
        self._process, self._lines = process, lines
        self.pid = process.pid

    def generate(self, plan: LoadPlan, on_second: OnSecond) -> Measurement:
        """Runs a plan; Ctrl-C ends the measurement at that point, and then no other plan can be run."""
        record: list[str] = []
        interrupted = False
        self._send_plan(plan)
        try:
            self._follow(on_second, record, GATHER_TIMEOUT_S + plan.timeout_s)
        except KeyboardInterrupt:
            interrupted = True
            _close_stdin(self._process)
            self._follow(on_second, record, _END_WITHIN_S + plan.timeout_s)
        if interrupted and not record:
            # The run had not started yet.
            raise KeyboardInterrupt
        try:
            measured, _ = read_record_lines(record)
        except InputError as err:
            raise MarinaError(
                "the process that sends the load ended without a result; its last output is above"
            ) from err
        return measured.model_copy(update={"interrupted": interrupted})

    def _send_plan(self, plan: LoadPlan) -> None:
        assert self._process.stdin is not None
        # A process that has ended returns no record, and that is reported.
        with suppress(BrokenPipeError):
            self._process.stdin.write(plan.model_dump_json() + "\n")
            self._process.stdin.flush()

    def _follow(self, on_second: OnSecond, record: list[str], silent_s: float) -> None:
        """Reports every second and adds all other lines to `record`, until the plan is done or the process has ended.

        A process that writes nothing for `silent_s` is killed."""
        while (line := self._line(silent_s)) is not None and not is_end(line):
            second = read_second_line(line)
            if second is None:
                record.append(line)
            else:
                on_second(*second)

    def _line(self, silent_s: float) -> str | None:
        try:
            return self._lines.get(timeout=silent_s)
        except Empty:
            self._process.kill()
            raise MarinaError(
                f"the process that sends the load wrote nothing for {silent_s:.0f} s and was killed",
                hint="something keeps it from getting CPU time: look with top, and measure again",
            ) from None


@contextmanager
def _sender() -> Iterator[tuple[subprocess.Popen[str], Lines]]:
    """Starts the process. A thread reads its lines, because Ctrl-C must not cut one in two."""
    lines: Lines = SimpleQueue()

    def read() -> None:
        assert process.stdout is not None
        with process.stdout as stream:
            for line in stream:
                lines.put(line)
        lines.put(None)

    process = subprocess.Popen(
        [sys.executable, "-m", "marina.loadtest.sending.sender"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=child_environment(),
        preexec_fn=_prepare_process,
    )
    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield process, lines
    finally:
        _close_stdin(process)
        if process.poll() is None:
            process.kill()
        process.wait()
        reader.join()


def _prepare_process() -> None:
    """Prepares the process before it becomes the sender: Ctrl-C must not end it while it imports, either."""
    ignore_interrupts()
    end_with_parent(signal.SIGKILL)


def _close_stdin(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.close()
