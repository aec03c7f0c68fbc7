"""Tries a staged package in a worker's place: a process of its own, `rehearse.py`, loads it and answers the sample."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGKILL, SIGSEGV, Signals

from marina.archiver.adopting import FOLDER, failure_hint
from marina.archiver.archive import ENTRY
from marina.archiver.isolation import ASKED, COMPILES, WITHOUT_KERNEL
from marina.archiver.own_handler import check_answer
from marina.archiver.rehearse import ANSWER, ANSWER_AGAIN, LOADED, SETTLED
from marina.archiver.requirements import check_loaded, hint_for_library, hint_for_missing
from marina.config.answers import as_recorded, can_record, lasting_part, settled_body
from marina.config.errors import SourceError
from marina.config.progress import Progress
from marina.config.record import RECORD, Draft
from marina.config.requirements import VARIABLE
from marina.config.spec import Spec

# The module, and the distribution that has it here.
_MISSING_MODULE = re.compile(r"ModuleNotFoundError: No module named '([^']+)'(?:: ([^ ]+) is installed here)?")
# The last line of a traceback, also of one of a thread.
_EXCEPTION = re.compile(r"^(?:\w+\.)*\w+(?:Error|Exception): .*", re.MULTILINE)
# Of what a worker says in an error; the rest is in its log.
_LONGEST = 400
# Where libraries keep what they downloaded.
_CACHES = re.compile(r"HF_.*|HUGGINGFACE_.*|NLTK_DATA|SENTENCE_TRANSFORMERS_HOME|TORCH_HOME|TRANSFORMERS_.*|XDG_.*")
_ASKED_FOR = {
    "host": "it asked for `{}`, but a pod has no network when it starts",
    "read": "it read `{}`, which is not in the package",
    "write": "it wrote `{}`, but a pod can write only to temporary folders",
}
RECORDED_ANSWER = "sample.answer"
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


def rehearse(spec: Spec, folder: Path, progress: Progress, environment: dict[str, str] | None = None) -> None:
    """Loads the staged package in a process of its own, as a worker would, warms it up and answers the sample."""
    asked, without_kernel = folder.parent / ASKED, folder.parent / WITHOUT_KERNEL
    asked.unlink(missing_ok=True)
    if spec.model.writes:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        (folder.parent / SETTLED).write_bytes(settled_body((folder / record["sample"]["file"]).read_bytes()))
    runs_user_code = spec.model.adopted or spec.model.compile == "eager" or ".py:" in spec.model.handler
    hidden = [str(spec.file.parent.resolve()), str(Path.home())] if runs_user_code else []
    # TorchServe kills a worker that takes longer for either.
    limit_s = spec.serving.startup_timeout_s + spec.serving.response_timeout_s if runs_user_code else None
    environment = _pod_environment(spec, folder.parent / "home", environment)
    try:
        done = _run_rehearsal(folder, hidden, environment, limit_s)
    except subprocess.TimeoutExpired as err:
        raise _too_late(spec, folder, err) from err
    if without_kernel.is_file():
        reason = without_kernel.read_text(encoding="utf-8")
        progress.say(f"  kept from the network and from files of this machine in Python only: namespaces: {reason}")
    refused = dict.fromkeys(asked.read_text(encoding="utf-8").splitlines()) if asked.is_file() else {}
    in_vain = [(what, name) for what, name in map(json.loads, refused)]
    if done.returncode == 0:
        for what, name in in_vain[:3]:
            progress.say(f"  it went on without what a pod does not have: {_ASKED_FOR[what].format(name)}")
        if VARIABLE in os.environ:
            check_loaded(spec, (folder.parent / LOADED).read_text(encoding="utf-8").splitlines())
        return
    (folder.parent / WORKER_LOG).write_text(done.stderr, encoding="utf-8")
    last = done.stderr.strip().splitlines()[-1:] or ["no message"]
    if done.returncode < 0:
        last = [f"its process was ended by {Signals(-done.returncode).name}"]
    place = _place_in(folder, done.stderr) if runs_user_code else ""
    said = last[0] if len(last[0]) <= _LONGEST else f"{last[0][:_LONGEST]}…"
    text = f"{spec.file}: the packaged model does not start in a worker: {said}{place}"
    if in_vain and not _MISSING_MODULE.match(last[0]):
        what, name = in_vain[0]
        text += f"; before that, {_ASKED_FOR[what].format(name)}"
        raise SourceError(text, hint=_instead(spec, what))
    raise SourceError(text, hint=failure_hint(spec, done.stderr) if spec.model.adopted else _hint(spec, done, last[0]))


def _place_in(folder: Path, log: str) -> str:
    """Where in the package's own files the last traceback ends: " at `handler.py:3`"; empty if in none of them."""
    frames = re.findall(rf'File "{re.escape(str(folder))}/(?:{FOLDER}/)?([^"]+)", line (\d+)', log)
    theirs = [f" at `{file}:{line}`" for file, line in frames if file.partition("/")[0] not in ("marina", ENTRY)]
    return theirs[-1] if theirs else ""


def _hint(spec: Spec, done: subprocess.CompletedProcess[str], last: str) -> str | None:
    """What to do about the last line of a worker that could not start."""
    if missing := _MISSING_MODULE.match(last):
        return hint_for_missing(spec, missing[1], missing[2])
    if hint := hint_for_library(last):
        return hint
    if done.returncode == -SIGSEGV and spec.model.compile == "aot" and spec.serving.device == "cuda":
        return "`compile: export` or `compile: eager`, with which torch loads no compiled library"
    if spec.model.compile == "eager" and last.startswith("FileNotFoundError"):
        return "keep what it reads in a buffer, or use another `compile`, which needs no source in a pod"
    return "it may need more memory than is free" if done.returncode == -SIGKILL else None


def _instead(spec: Spec, what: str) -> str:
    """What to do instead of asking for something that a pod does not have."""
    if what == "write":
        return "write below `tempfile.gettempdir()`, the only place where a pod may"
    if spec.model.adopted:
        return "put the file into the archive, and read it from the folder `model_dir` of the handler's context"
    if ".py:" not in spec.model.handler:
        return "keep what it reads in a buffer, or use another `compile`, which needs no source in a pod"
    first = "save what it downloads beside the spec, write" if what == "host" else "write"
    return f'{first} `files: [./NAME]` under `model`, and read it from `self.directory / "files"`'


def _too_late(spec: Spec, folder: Path, expired: subprocess.TimeoutExpired) -> SourceError:
    """What is said about a worker that did not answer in time; what broke in one of its threads is in its log."""
    log = (expired.stderr or b"").decode("utf-8", "replace")
    (folder.parent / WORKER_LOG).write_text(log, encoding="utf-8")
    text = f"{spec.file}: the packaged model did not answer its sample in a worker within {expired.timeout:g} s"
    if broken := _EXCEPTION.findall(log):
        text += f"; before that: {broken[-1]}"
    hint = "raise `startup_timeout_s` or `response_timeout_s` under `serving`, whose sum that is"
    if spec.load.sample:
        hint = f"put a request that the handler answers at {spec.path(spec.load.sample)}, or {hint}"
    return SourceError(text, hint=hint)


def _run_rehearsal(
    folder: Path, hidden: list[str], environment: dict[str, str], limit_s: float | None
) -> subprocess.CompletedProcess[str]:
    script = Path(__file__).with_name("rehearse.py")
    # -P keeps this folder and the current one off the path, as in a worker.
    command = [sys.executable, "-P", str(script), str(folder), *hidden]
    return subprocess.run(command, env=environment, capture_output=True, text=True, cwd=folder, timeout=limit_s)


def _pod_environment(spec: Spec, home: Path, environment: dict[str, str] | None) -> dict[str, str]:
    """The environment without what libraries downloaded on this machine, which is not in a pod, either."""
    home.mkdir(exist_ok=True)
    inherited = os.environ if environment is None else environment
    kept = {name: value for name, value in inherited.items() if not _CACHES.fullmatch(name)} | {"HOME": str(home)}
    if environment is not None:
        kept[COMPILES] = "1"
    if spec.model.adopted:
        kept["TS_DECODE_INPUT_REQUEST"] = str(spec.model.decode_requests).lower()
    return kept


def check_sample_answer(spec: Spec, draft: Draft, folder: Path) -> None:
    """Checks that an own handler's answer to the sample, as the rehearsal left it, is what the handler declares."""
    if draft.gives is not None:
        content_type, _, body = (folder.parent / ANSWER).read_bytes().partition(b"\n")
        check_answer(spec, draft.gives, content_type.decode(), body)


def record_answer(draft: Draft, folder: Path) -> Draft:
    """The draft with the answer to its sample, as the rehearsal left it, in the package: what `deploy` holds new pods
    to. Nothing is recorded of answers that are others each time, or of which only the bytes can be compared."""
    files = [folder.parent / name for name in (ANSWER, ANSWER_AGAIN)]
    if not all(file.is_file() for file in files):
        return draft
    answer, again = (file.read_bytes().partition(b"\n")[2] for file in files)
    if not can_record(answer) or not as_recorded(answer, again):
        return draft
    (folder / RECORDED_ANSWER).write_bytes(lasting_part(answer))
    return draft.model_copy(update={"sample": draft.sample.model_copy(update={"answer": RECORDED_ANSWER})})
