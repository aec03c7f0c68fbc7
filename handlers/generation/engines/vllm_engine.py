"""`text.engine: vllm`: vLLM writes the tokens, in a process and a Python of its own.

vLLM decides what a step computes, and starts one step after the other by itself. It gets and returns tokens; Marina
turns them into text. Weights may be mounted: only the files that were packaged are served, so tens of gigabytes can
stay out of a MAR."""

import hashlib
import logging
import math
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marina.handlers.generation.engine import NoToken, Sampling, Token, Usage
from marina.handlers.generation.engines import vllm_runner
from marina.handlers.record import RecordError, TextSpec

_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
# vLLM's seeds are positive, and -1 means no seed.
_SEEDS = 2**63
# How much of a file is compared: the names, types and places of a file's tensors are at its beginning.
_HEAD = 1 << 20
# If vLLM returns nothing for this long while answers are open, it is restarted.
STEP_TIMEOUT_S = 120.0
logger = logging.getLogger(__name__)

# Variables that vLLM's process does not get: those of this Python, and the folder of this process's metrics, which vLLM
# would write its own into.
_NOT_PASSED = ("PYTHON", "PROMETHEUS_")
_FIXED = {
    # Models are only read from their folder, never downloaded.
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    # No plugins of packages that are installed beside vLLM.
    "VLLM_PLUGINS": "",
}
_DEFAULT = {"VLLM_LOGGING_LEVEL": "WARNING"}


class EngineGone(Exception):
    """vLLM's process has ended, or cannot be used any longer; the message says why."""


class VllmProcess:
    """A process of `vllm_runner.py`, and its messages in their order."""

    def __init__(self, python: str, arguments: Mapping[str, Any]) -> None:
        """Starts the process; its first message says whether vLLM accepts the arguments."""
        # `-I`: neither this program's folder nor the user's is on the path of its imports.
        command = [python, "-I", str(Path(vllm_runner.__file__).resolve())]
        try:
            # A session of its own, so that the processes that vLLM starts can be ended with it.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=_environment(os.environ),
                start_new_session=True,
            )
        except OSError as err:
            raise EngineGone(f"`text.vllm.python`: `{python}` cannot be run: {err.strerror}") from err
        self._messages: queue.SimpleQueue[vllm_runner.Message | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, name="vllm", daemon=True).start()
        self.send(arguments)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def send(self, message: Mapping[str, Any]) -> None:
        """Sends a message. It never blocks for long, because the runner has a thread that always reads."""
        assert self._process.stdin is not None
        try:
            vllm_runner.write_message(self._process.stdin, dict(message))
        except OSError as err:
            raise self.gone() from err

    def receive(self, timeout_s: float | None) -> vllm_runner.Message:
        """The next message. Raises EngineGone if vLLM has ended, or sends none in time: then it is killed."""
        try:
            message = self._messages.get(timeout=timeout_s)
        except queue.Empty:
            self.kill()
            raise EngineGone(f"vLLM did not answer for {timeout_s:g} s, and was killed") from None
        if message is None:
            raise self.gone()
        if "failed" in message:
            self.kill()
            raise EngineGone(f"vLLM: {message['failed']}")
        return message

    def receive_all(self, timeout_s: float) -> list[vllm_runner.Message]:
        """All messages that have come since the last call, at least one."""
        messages = [self.receive(timeout_s)]
        while not self._messages.empty():
            messages.append(self.receive(timeout_s))
        return messages

    def gone(self) -> EngineGone:
        """The error that says how the process ended. Kills what is left of it."""
        self.kill()
        code = self._process.returncode
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        return EngineGone(f"vLLM's process ended {how}")

    def kill(self) -> None:
        """Kills the process and its children, which may hold a GPU's memory after the process itself has ended."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            while (message := vllm_runner.read_message(self._process.stdout)) is not None:
                self._messages.put(message)
        except (OSError, ValueError):
            logger.exception("vLLM's messages cannot be read")
        self._messages.put(None)


def _environment(own: Mapping[str, str]) -> dict[str, str]:
    passed = {name: value for name, value in own.items() if not name.startswith(_NOT_PASSED)}
    return _DEFAULT | passed | _FIXED


@dataclass
class _Held:
    """How many tokens a sequence has, with its prompt, and how many of the likeliest are returned with each token."""

    tokens: int
    logprobs: int


class VllmEngine:
    """Up to `slots` sequences at the same time; `ends` are the model's end tokens."""

    def __init__(self, process: VllmProcess, *, slots: int, ends: Sequence[int]) -> None:
        self._process, self._slots, self._ends = process, slots, list(ends)
        ready = process.receive(None)["ready"]
        self.version: str = ready["version"]
        self._room: int = ready["cache_tokens"]
        self._held: dict[str, _Held] = {}
        # Sequences that vLLM has ended or refused, and that were not cancelled yet.
        self._ended: set[str] = set()
        self._reused = 0

    def add(self, sequence: str, prompt: Sequence[int], sampling: Sampling) -> None:
        self._held[sequence] = _Held(len(prompt), sampling.logprobs or 0)
        arguments = sampling_arguments(sampling, self._ends)
        self._process.send({"add": sequence, "prompt": list(prompt), "sampling": arguments})

    def step(self) -> list[Token | NoToken]:
        tokens: list[Token | NoToken] = []
        for message in self._process.receive_all(STEP_TIMEOUT_S):
            tokens += self._read(message)
        return tokens

    def _read(self, message: Mapping[str, Any]) -> list[Token | NoToken]:
        if "refused" in message:
            self._ended.add(message["refused"])
            return [NoToken(message["refused"])]
        self._reused += message["reused"]
        tokens: list[Token | NoToken] = []
        for sequence, token, logprob, likeliest in message["tokens"]:
            # Tokens of sequences that were cancelled meanwhile may still come.
            if held := self._held.get(sequence):
                held.tokens += 1
                # vLLM puts the token itself last if it is not one of the likeliest.
                pairs = tuple((at, value) for at, value in likeliest[: held.logprobs])
                tokens.append(Token(sequence, token, math.nan if logprob is None else logprob, pairs))
        for sequence in self._held.keys() & set(message["ended"]):
            self._ended.add(sequence)
            # The loop ends a sequence at its last token, so it only sees this if vLLM ended one too early.
            tokens.append(NoToken(sequence))
        return tokens

    def cancel(self, sequence: str) -> None:
        self._held.pop(sequence, None)
        if sequence in self._ended:
            self._ended.remove(sequence)
        else:
            self._process.send({"cancel": sequence})

    def usage(self) -> Usage:
        """Raises EngineGone if vLLM's process has ended, also between answers."""
        if self._process.has_ended:
            raise self._process.gone()
        return Usage(
            len(self._held), self._slots, sum(held.tokens for held in self._held.values()), self._room, self._reused
        )

    def close(self) -> None:
        self._process.kill()


def sampling_arguments(sampling: Sampling, ends: Sequence[int]) -> dict[str, Any]:
    """The arguments of vLLM's `SamplingParams`."""
    return {
        # vLLM refuses a `top_p` of 0, which means the likeliest token.
        "temperature": sampling.temperature if sampling.top_p > 0 else 0.0,
        "top_p": sampling.top_p or 1.0,
        "top_k": sampling.top_k,
        "seed": None if sampling.seed is None else sampling.seed % _SEEDS,
        "max_tokens": sampling.max_tokens,
        # Only the end tokens that the package names end an answer, not those of vLLM's own configuration.
        "ignore_eos": True,
        "stop_token_ids": [*([] if sampling.ignore_eos else ends), *sampling.ends],
        "presence_penalty": sampling.presence,
        "frequency_penalty": sampling.frequency,
        "repetition_penalty": sampling.repetition,
        "logit_bias": dict(sampling.bias) or None,
        "min_p": sampling.min_p,
        "min_tokens": sampling.min_tokens,
        "logprobs": sampling.logprobs,
        **({"prompt_logprobs": sampling.logprobs} if sampling.prompt_logprobs else {}),
        # `vllm_runner.py` makes vLLM's `structured_outputs` of it.
        **({"json": sampling.schema} if sampling.schema is not None else {}),
    }


def make_vllm(text: TextSpec, folder: Path, precision: str) -> VllmEngine:
    """Starts vLLM on the packaged weights, or on the mounted ones if the package has none. Raises RecordError."""
    if text.vllm is None:
        raise RecordError("`text.vllm`: missing, the engine `vllm` needs it")
    try:
        if text.vllm.weights is not None:
            folder = Path(text.vllm.weights)
            check_files(folder, text.vllm.files)
        process = VllmProcess(text.vllm.python, engine_arguments(text, folder, precision))
        return VllmEngine(process, slots=text.slots, ends=text.ends)
    except EngineGone as err:
        raise RecordError(str(err)) from err


def engine_arguments(text: TextSpec, folder: Path, precision: str) -> dict[str, Any]:
    """The arguments of vLLM's `EngineArgs`. The spec's own `args` were checked when the spec was read."""
    return {
        # In each step one token for every slot, and a piece of prompts.
        "max_num_batched_tokens": text.slots + text.prefill_chunk,
        **(text.vllm.args if text.vllm else {}),
        "model": str(folder),
        "dtype": _DTYPES[precision],
        "max_model_len": text.context,
        "max_num_seqs": text.slots,
        # Without this a prompt longer than a step would be refused.
        "enable_chunked_prefill": True,
        # No pickles, and no code that comes with a model.
        "load_format": "safetensors",
        "trust_remote_code": False,
        # A `generation_config.json` must not change the sampling of requests.
        "generation_config": "vllm",
        "disable_log_stats": True,
    }


def fingerprint_files(files: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """The size of each file and the hash of its beginning, by its name."""
    return {file.name: {"bytes": file.stat().st_size, "head": _sha256_of_head(file)} for file in files}


def check_files(folder: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises RecordError if a file is missing, new or different; only beginnings are read."""
    if not folder.is_dir():
        raise RecordError(f"`text.vllm.weights`: `{folder}` is not a folder here; is its volume mounted?")
    if extra := sorted({file.name for file in folder.glob("*.safetensors")} - files.keys()):
        raise RecordError(f"`{folder / extra[0]}` is not in the package")
    for name, expected in sorted(files.items()):
        file = folder / name
        if not file.is_file():
            raise RecordError(f"`{file}` is missing")
        if (size := file.stat().st_size) != expected["bytes"]:
            raise RecordError(f"`{file}` has {size} bytes, but the packaged file has {expected['bytes']}")
        if (head := _sha256_of_head(file)) != expected["head"]:
            raise RecordError(f"`{file}` differs from the packaged file: head {head}, not {expected['head']}")


def _sha256_of_head(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.sha256(stream.read(_HEAD)).hexdigest()
