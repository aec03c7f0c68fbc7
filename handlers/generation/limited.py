"""A process of its own for work that may take any time and memory, with limits that the kernel enforces: chat
templates, which are programs that come with a model, and JSON schemas, of which forty bytes may take gigabytes.

Beside the streams neither could be ended, and jinja2 never releases the GIL. The process reads a task per line, as
JSON, and answers each with a line. A child of it does the work; when a limit ends the child, it forks another, which
has everything loaded already."""

import os
import resource
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import orjson

# Processor time for one task, in whole seconds.
LONGEST_S = 1
# Streams go before tasks where both want the same processor.
_NICE = 5
# The kernel ends a child at its limit; this is only for one that hangs without using the processor.
_SILENCE_S = 60
_TOO_MUCH = b"null\n"
# The exit status of a child that found no further task, and of one that needs more memory.
_NO_MORE, _LIMIT = 3, 4


class TookTooMuch(Exception):
    """A task was ended by its limits."""


class LimitedProcess:
    """A process of a module that calls `serve`. It starts with the first task, and again if it has ended."""

    def __init__(self, module: str, *arguments: str) -> None:
        # `-P`: the current folder is not on the path of its imports.
        self._command = [sys.executable, "-P", "-m", module, *arguments]
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, task: object) -> Any:
        """The answer to one task. Raises TookTooMuch, or OSError if the process fails, whatever the task is."""
        if self._process is None or self._process.poll() is not None:
            self.close()
            path = os.pathsep.join([str(Path(__file__).parents[3]), *filter(None, sys.path)])
            environment = {**os.environ, "PYTHONPATH": path}
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(self._command, stdin=pipe, stdout=pipe, env=environment)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(orjson.dumps(task) + b"\n")
            self._process.stdin.flush()
            has_answered = select.select([self._process.stdout], [], [], _SILENCE_S)[0]
            line = self._process.stdout.readline() if has_answered else b""
        except BrokenPipeError:
            line = b""
        if not line.endswith(b"\n"):
            self.close()
            raise OSError(f"the process of {self._command[3]} has ended")
        if line == _TOO_MUCH:
            raise TookTooMuch
        return orjson.loads(line)

    def close(self) -> None:
        if process := self._process:
            self._process = None
            process.kill()
            process.communicate()


def serve(answer: Callable[[Any], object], *, forgets: bool = False) -> None:
    """Answers the tasks on standard input; ends with it. With `forgets` each has a child of its own."""
    os.nice(_NICE)
    while True:
        child = os.fork()
        if child == 0:
            _work(answer, forgets)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == _NO_MORE:
            return
        if status > 0 and status != _LIMIT:
            sys.exit(status)
        if status:
            sys.stdout.buffer.write(_TOO_MUCH)
            sys.stdout.buffer.flush()


def _work(answer: Callable[[Any], object], forgets: bool) -> NoReturn:
    # A library would print a stack for every task that takes too much memory.
    sys.stderr = os.fdopen(os.dup(2), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    status = _NO_MORE
    try:
        for line in sys.stdin.buffer:
            sys.stdout.buffer.write(orjson.dumps(answer(orjson.loads(line))) + b"\n")
            sys.stdout.buffer.flush()
            if forgets:
                status = 0
                break
    except MemoryError:
        status = _LIMIT
    except BaseException:
        traceback.print_exc()
        status = 1
    os._exit(status)


@contextmanager
def limited(memory: int, seconds: float = LONGEST_S) -> Iterator[None]:
    """Ends this process if the block takes more than these seconds of processor time. More than `memory` bytes on top
    of what it has raise a MemoryError, or end it, too."""
    with open("/proc/self/statm", encoding="ascii") as pages:
        has = int(pages.read().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    resource.setrlimit(resource.RLIMIT_AS, (has + memory, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        signal.setitimer(signal.ITIMER_PROF, 0)
