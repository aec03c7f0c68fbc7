"""`text.engine: vllm`: vLLM writes the tokens, in a process and a Python of its own.

vLLM decides what a step computes, and starts one step after the other by itself. It gets and returns tokens; Marina
turns them into text."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marina.handlers.generation.engine import NoToken, Sampling, Token, Usage
from marina.handlers.generation.engines.vllm_process import EngineGone, VllmProcess
from marina.handlers.generation.engines.vllm_weights import check_files
from marina.handlers.record import RecordError, TextSpec

_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
# vLLM's seeds are positive, and -1 means no seed.
_SEEDS = 2**63


# If vLLM returns nothing for this long while answers are open, it is restarted.
STEP_TIMEOUT_S = 120.0


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
        "stop_token_ids": [] if sampling.ignore_eos else list(ends),
        "logprobs": sampling.logprobs,
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
