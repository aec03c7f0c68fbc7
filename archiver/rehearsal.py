"""Tries a staged package in a worker's place: a process of its own, `rehearse.py`, loads it and answers the sample."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGKILL, SIGSEGV, Signals

from marina.archiver.adopting import failure_hint
from marina.archiver.own_handler import check_answer
from marina.archiver.rehearse import ANSWER
from marina.archiver.requirements import hint_for_missing
from marina.config.errors import SourceError
from marina.config.progress import Progress
from marina.config.record import Draft
from marina.config.spec import Spec

# The module, and the distribution that has it here.
_MISSING_MODULE = re.compile(r"ModuleNotFoundError: No module named '([^']+)'(?:: ([^ ]+) is installed here)?")
# What a worker printed that could not start with the package.
WORKER_LOG = "worker.log"


@contextmanager
def keeping_worker_log(scratch: Path, out: Path, progress: Progress) -> Iterator[None]:
    """Keeps in `out` the log of a worker that could not start, and removes that of an earlier one."""
    log, kept = scratch / WORKER_LOG, out / WORKER_LOG
    kept.unlink(missing_ok=True)
    try:
        yield
    finally:
        if log.is_file():
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(log, kept)
            progress.say(f"  what the worker printed: {kept}")


def rehearse(spec: Spec, folder: Path, environment: dict[str, str] | None = None) -> None:
    """Loads the staged package in a process of its own, as a worker would, warms it up and answers the sample."""
    if spec.model.adopted:
        environment = dict(os.environ) | {"TS_DECODE_INPUT_REQUEST": str(spec.model.decode_requests).lower()}
    done = _run_rehearsal(folder, environment)
    if done.returncode != 0:
        (folder.parent / WORKER_LOG).write_text(done.stderr, encoding="utf-8")
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        if done.returncode < 0:
            last = [f"its process was ended by {Signals(-done.returncode).name}"]
        hint = "it may need more memory than is free" if done.returncode == -SIGKILL else None
        if done.returncode == -SIGSEGV and spec.model.compile == "aot" and spec.serving.device == "cuda":
            hint = "`compile: export` or `compile: eager`, with which torch loads no compiled library"
        if spec.model.compile == "eager" and last[0].startswith("FileNotFoundError"):
            hint = "keep what it reads in a buffer, or use another `compile`, which needs no source in a pod"
        if missing := _MISSING_MODULE.match(last[0]):
            hint = hint_for_missing(spec, missing[1], missing[2])
        text = f"{spec.file}: the packaged model does not start in a worker: {last[0]}"
        raise SourceError(text, hint=failure_hint(spec, done.stderr) if spec.model.adopted else hint)


def _run_rehearsal(folder: Path, environment: dict[str, str] | None) -> subprocess.CompletedProcess[str]:
    script = Path(__file__).with_name("rehearse.py")
    # -P keeps this folder and the current one off the path, as in a worker.
    command = [sys.executable, "-P", str(script), str(folder)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, cwd=folder)


def check_sample_answer(spec: Spec, draft: Draft, folder: Path) -> None:
    """Checks that an own handler's answer to the sample, as the rehearsal left it, is what the handler declares."""
    if draft.gives is not None:
        content_type, _, body = (folder.parent / ANSWER).read_bytes().partition(b"\n")
        check_answer(spec, draft.gives, content_type.decode(), body)
