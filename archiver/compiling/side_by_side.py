"""Several programs compiled side by side, within the cores and the memory of this machine.

Inductor computes in one thread and waits for a compiler that does as well, so a second program takes a second process.
A process that fails leaves its program to this one, whose error is then the user's.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from archiver.compiling import pace
from archiver.compiling.building import build, settings_for
from archiver.compiling.cache import compile_key, keep, taken_out
from archiver.compiling.surroundings import quiet, threads
from config.cpu_targets import CpuTarget
from config.errors import InputError
from config.machine import end_with_parent, free_memory, usable_cores
from config.progress import Progress
from config.record import Artifact
from config.spec import Spec

# How many artifacts are compiled at once; without it as many as there are cores and memory for.
JOBS = "MARINA_JOBS"
# What torch and Inductor take, and how often the weights are held while they are folded and written.
_PROCESS_BYTES, _WEIGHTS_HELD = 1_500_000_000, 4


@dataclass(frozen=True)
class Task:
    """One artifact to compile: of which program, for which CPU and how many threads, and its name in the cache."""

    artifact: Artifact
    program: ExportedProgram
    target: CpuTarget
    threads: int
    quantised: bool
    key: str

    @property
    def text(self) -> str:
        """What it is for."""
        return f"batch {self.artifact.batch}" + (f", length {self.artifact.length}" if self.artifact.length else "")


Finished = Callable[[Task, float], None]


def task_for(spec: Spec, program: ExportedProgram, batch: int, length: int | None) -> Task:
    """What it takes to compile a program as a spec says."""
    name = f"model-b{batch}.pt2" if length is None else f"model-b{batch}-l{length}.pt2"
    target = spec.model.cpu_target
    with threads(spec.threads):
        key = compile_key(program, {"target": target} | settings_for(target))
    artifact = Artifact(file=name, batch=batch, length=length)
    return Task(artifact, program, target, spec.threads, spec.model.precision == "int8", key)


def compile_all(tasks: Sequence[Task], folder: Path, progress: Progress, title: str) -> None:
    """Puts every artifact into a folder: from the cache, or compiled, with how long that will take said before."""
    missing = [task for task in tasks if not taken_out(task.key, folder / task.artifact.file)]
    if not missing:
        progress.say(f"  {title}: all taken from the cache")
        return
    at_once = _at_once(missing)
    sizes = [pace.size_of(task.program) for task in missing]
    beside = f", {at_once} at once" if at_once > 1 else ""
    progress.say(f"  {len(missing)} of {len(tasks)} to compile{beside}: about {pace.estimate(sizes, at_once)}")
    began = time.monotonic()

    def finished(task: Task, seconds: float) -> None:
        keep(task.key, folder / task.artifact.file)
        if len(missing) > 1:
            progress.say(f"    {task.text:<42} {seconds:6.1f} s")

    with progress.step(title):
        left = _beside(missing, folder, at_once, finished) if at_once > 1 else missing
        for task in left:
            one_began = time.monotonic()
            build(task.program, task.target, task.threads, folder / task.artifact.file)
            finished(task, time.monotonic() - one_began)
    pace.note(sizes, at_once, time.monotonic() - began)


def _at_once(tasks: Sequence[Task]) -> int:
    """How many artifacts to compile at the same time: `$MARINA_JOBS`, or as many as there are cores and memory for. On
    a GPU one, because kernels are timed while they are chosen."""
    # The same for each of them, but for what depends on the length.
    program = tasks[-1].program
    held = [value for value in (*program.state_dict.values(), *program.constants.values()) if torch.is_tensor(value)]
    if any(value.is_cuda for value in held):
        return 1
    if jobs := os.environ.get(JOBS):
        return min(len(tasks), _number(jobs))
    by_memory = free_memory() // (_PROCESS_BYTES + _WEIGHTS_HELD * sum(value.nbytes for value in held))
    return max(1, min(len(tasks), usable_cores(), by_memory))


def _number(jobs: str) -> int:
    if not jobs.isdecimal() or int(jobs) < 1:
        raise InputError(f"`{JOBS}`: got `{jobs}`, allowed: a whole number from 1", hint=f"unset {JOBS}")
    return int(jobs)


def _beside(tasks: Sequence[Task], folder: Path, at_once: int, finished: Finished) -> list[Task]:
    """Compiles in processes of their own; what those left undone."""
    waiting, undone = deque(tasks), list(tasks)
    with (
        tempfile.TemporaryDirectory(prefix="marina-compile-") as scratch,
        _compilers(at_once) as compilers,
        selectors.DefaultSelector() as answers,
    ):
        for compiler in compilers:
            answers.register(compiler.answers, selectors.EVENT_READ, compiler)
            compiler.next_of(waiting, Path(scratch), folder)
        while answers.get_map():
            for ready, _ in answers.select():
                compiler = ready.data
                task, answer = compiler.task, compiler.answers.readline()
                if not answer:
                    answers.unregister(compiler.answers)
                    continue
                undone.remove(task)
                finished(task, json.loads(answer)["seconds"])
                if not compiler.next_of(waiting, Path(scratch), folder):
                    answers.unregister(compiler.answers)
    return undone


class _Compiler:
    """A process that compiles what it is told to, one after another; at the end of its answers it is gone."""

    def __init__(self) -> None:
        # -P: the current folder is not on the path. A session of its own: Ctrl-C is ours alone, and all of it can be
        # ended.
        self._process: subprocess.Popen[str] = subprocess.Popen(
            [sys.executable, "-P", "-m", "archiver.compiling.apart"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            preexec_fn=partial(end_with_parent, signal.SIGKILL),
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._orders, self.answers = self._process.stdin, self._process.stdout
        self.task: Task | None = None

    def next_of(self, waiting: deque[Task], scratch: Path, folder: Path) -> bool:
        """Gives it the next program; False when there is none left."""
        if not waiting:
            return False
        self.task = waiting.popleft()
        program = scratch / self.task.artifact.file
        with quiet():
            torch.export.save(self.task.program, program)
        order: dict[str, Any] = {"program": str(program), "file": str(folder / self.task.artifact.file)}
        order |= {"target": self.task.target, "threads": self.task.threads, "quantised": self.task.quantised}
        with suppress(BrokenPipeError):  # its answers end too
            print(json.dumps(order), file=self._orders, flush=True)
        return True

    def end(self) -> None:
        """Ends it, whatever it does, with the compilers that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self.answers.close()
        with suppress(BrokenPipeError):
            self._orders.close()
        self._process.wait()


@contextmanager
def _compilers(count: int) -> Iterator[list[_Compiler]]:
    compilers: list[_Compiler] = []
    try:
        for _ in range(count):
            compilers.append(_Compiler())
        yield compilers
    finally:
        for compiler in compilers:
            compiler.end()
