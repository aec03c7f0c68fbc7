"""Compiles several programs in parallel, within the cores and the memory of this machine.

Inductor is single-threaded, and so is the C++ compiler it waits for, so each program that is compiled at the same time
needs a process of its own. If a process fails, its program is compiled here, and the user sees the error of that."""

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from marina.archiver.compiling import time_estimate
from marina.archiver.compiling.artifacts import compile_artifact, inductor_settings
from marina.archiver.compiling.cache import compile_key, is_on_gpu, load_from_cache, store_in_cache
from marina.archiver.compiling.environment import quiet, torch_threads
from marina.config.cpu_targets import CpuTarget
from marina.config.errors import InputError
from marina.config.machine import end_with_parent, free_memory, usable_cores
from marina.config.progress import Progress
from marina.config.record import Artifact
from marina.config.spec import Spec

# Environment variable: how many artifacts to compile at once.
JOBS = "MARINA_JOBS"
# Memory of a process with torch and Inductor, and how many copies of the weights it holds while folding and writing.
_PROCESS_BYTES, _COPIES_OF_WEIGHTS = 1_500_000_000, 4


@dataclass(frozen=True)
class Task:
    """One artifact to compile: its program, CPU target and threads, and its key in the cache."""

    artifact: Artifact
    program: ExportedProgram
    target: CpuTarget
    threads: int
    quantised: bool
    key: str

    @property
    def text(self) -> str:
        """The shape that it is compiled for, for the progress output."""
        return f"batch {self.artifact.batch}" + (f", length {self.artifact.length}" if self.artifact.length else "")


Finished = Callable[[Task, float], None]


def task_for(spec: Spec, program: ExportedProgram, batch: int, length: int | None) -> Task:
    """The task of compiling a program with the settings of a spec."""
    name = f"model-b{batch}.pt2" if length is None else f"model-b{batch}-l{length}.pt2"
    target = spec.model.cpu_target
    with torch_threads(spec.threads):
        key = compile_key(program, {"target": target} | inductor_settings(program, target))
    artifact = Artifact(file=name, batch=batch, length=length)
    return Task(artifact, program, target, spec.threads, spec.model.precision == "int8", key)


def compile_all(tasks: Sequence[Task], folder: Path, progress: Progress, title: str) -> None:
    """Puts every artifact into a folder, from the cache or compiled; announces beforehand how long compiling takes."""
    missing = [task for task in tasks if not load_from_cache(task.key, folder / task.artifact.file)]
    if not missing:
        progress.say(f"  {title}: all taken from the cache")
        return
    at_once = _at_once(missing)
    sizes = [time_estimate.program_size(task.program) for task in missing]
    parallel, duration = f", {at_once} at once" if at_once > 1 else "", time_estimate.describe_estimate(sizes, at_once)
    progress.say(f"  {len(missing)} of {len(tasks)} to compile{parallel}: about {duration}")
    began = time.monotonic()

    def finished(task: Task, seconds: float) -> None:
        store_in_cache(task.key, folder / task.artifact.file)
        if len(missing) > 1:
            progress.say(f"    {task.text:<42} {seconds:6.1f} s")

    with progress.step(title):
        left = _compile_in_children(missing, folder, at_once, finished) if at_once > 1 else missing
        for task in left:
            task_began = time.monotonic()
            compile_artifact(task.program, task.target, task.threads, folder / task.artifact.file)
            finished(task, time.monotonic() - task_began)
    time_estimate.record_time(sizes, at_once, time.monotonic() - began)


def _at_once(tasks: Sequence[Task]) -> int:
    """How many tasks to compile at once: `$MARINA_JOBS`, or what this machine has the cores and memory for. 1 on a GPU,
    where Inductor chooses kernels by timing them."""
    # All tasks have the same weights, but for constants that depend on the length.
    program = tasks[-1].program
    if is_on_gpu(program):
        return 1
    weights = [value for value in (*program.state_dict.values(), *program.constants.values()) if torch.is_tensor(value)]
    if jobs := os.environ.get(JOBS):
        return min(len(tasks), _parse_jobs(jobs))
    by_memory = free_memory() // (_PROCESS_BYTES + _COPIES_OF_WEIGHTS * sum(value.nbytes for value in weights))
    return max(1, min(len(tasks), usable_cores(), by_memory))


def _parse_jobs(jobs: str) -> int:
    if not jobs.isdecimal() or int(jobs) < 1:
        raise InputError(f"`{JOBS}`: got `{jobs}`, allowed: a whole number from 1", hint=f"unset {JOBS}")
    return int(jobs)


def _compile_in_children(tasks: Sequence[Task], folder: Path, at_once: int, finished: Finished) -> list[Task]:
    """Compiles in child processes; returns the tasks that they failed to do."""
    waiting, undone = deque(tasks), list(tasks)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="marina-compile-")))
        answers = stack.enter_context(selectors.DefaultSelector())
        for _ in range(at_once):
            compiler = _Compiler()
            stack.callback(compiler.end)
            answers.register(compiler.answers, selectors.EVENT_READ, compiler)
            compiler.start_next(waiting, scratch, folder)
        while answers.get_map():
            for ready, _ in answers.select():
                compiler = ready.data
                task, answer = compiler.task, compiler.answers.readline()
                if not answer:
                    answers.unregister(compiler.answers)
                    continue
                undone.remove(task)
                finished(task, json.loads(answer)["seconds"])
                if not compiler.start_next(waiting, scratch, folder):
                    answers.unregister(compiler.answers)
    return undone


class _Compiler:
    """A child process that compiles one program at a time; the end of its answers means that it has died."""

    def __init__(self) -> None:
        # -P keeps the current folder off the path. In a session of its own, Ctrl-C reaches only this process, and the
        # child can be killed together with the compilers that it started.
        self._process: subprocess.Popen[str] = subprocess.Popen(
            [sys.executable, "-P", "-m", "marina.archiver.compiling.child_process"],
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

    def start_next(self, waiting: deque[Task], scratch: Path, folder: Path) -> bool:
        """Sends the child its next program; False if none is left."""
        if not waiting:
            return False
        self.task = waiting.popleft()
        program = scratch / self.task.artifact.file
        with quiet():
            torch.export.save(self.task.program, program)
        order: dict[str, Any] = {"program": str(program), "file": str(folder / self.task.artifact.file)}
        order |= {"target": self.task.target, "threads": self.task.threads, "quantised": self.task.quantised}
        with suppress(BrokenPipeError):  # the child has died, which the end of its answers shows as well
            print(json.dumps(order), file=self._orders, flush=True)
        return True

    def end(self) -> None:
        """Kills the child and the compilers that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self.answers.close()
        with suppress(BrokenPipeError):
            self._orders.close()
        self._process.wait()
