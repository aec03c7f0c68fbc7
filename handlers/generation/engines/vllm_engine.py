"""`text.engine: vllm`: a vLLM in a process and a Python of its own writes the tokens.

vLLM decides what a step computes, and goes from one to the next without being asked. Text is ours, tokens are its own:
it is given tokens and gives tokens, and nothing is made text twice."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from handlers.generation.engine import NoToken, Sampling, Token, Usage
from handlers.generation.engines.vllm_process import EngineGone, VllmProcess
from handlers.generation.engines.vllm_weights import OtherWeights, check
from handlers.record import RecordError, TextSpec

_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
# Seeds are positive there, and -1 is none.
_SEEDS = 2**63


@dataclass
class _Held:
    """A sequence's tokens so far, its prompt's and its own, and how many of the likeliest are told with each."""

    tokens: int
    logprobs: int


class VllmEngine:
    """At most `slots` sequences at the same time; `ends` are the tokens after which a model has nothing more to say."""

    def __init__(self, process: VllmProcess, *, slots: int, ends: Sequence[int], step_timeout_s: float) -> None:
        self._process, self._slots, self._ends, self._step_timeout_s = process, slots, list(ends), step_timeout_s
        ready = process.receive(None)["ready"]
        self.version: str = ready["version"]
        self._room: int = ready["cache_tokens"]
        self._held: dict[str, _Held] = {}
        # Those that vLLM has nothing to do for any more.
        self._ended: set[str] = set()
        self._reused = 0

    def add(self, sequence: str, prompt: Sequence[int], sampling: Sampling) -> None:
        self._held[sequence] = _Held(len(prompt), sampling.logprobs or 0)
        arguments = sampling_arguments(sampling, self._ends)
        self._process.send({"add": sequence, "prompt": list(prompt), "sampling": arguments})

    def step(self) -> list[Token | NoToken]:
        tokens: list[Token | NoToken] = []
        for message in self._process.receive_all(self._step_timeout_s):
            tokens += self._read(message)
        return tokens

    def _read(self, message: Mapping[str, Any]) -> list[Token | NoToken]:
        if "refused" in message:
            self._ended.add(message["refused"])
            return [NoToken(message["refused"])]
        self._reused += message["reused"]
        tokens: list[Token | NoToken] = []
        for sequence, token, logprob, likeliest in message["tokens"]:
            # Of those that were cancelled meanwhile something may still come.
            if held := self._held.get(sequence):
                held.tokens += 1
                # The token itself comes after them where it is none of them.
                pairs = tuple((at, value) for at, value in likeliest[: held.logprobs])
                tokens.append(Token(sequence, token, math.nan if logprob is None else logprob, pairs))
        for sequence in self._held.keys() & set(message["ended"]):
            self._ended.add(sequence)
            # Whoever ends at its last token has ended by then; nobody waits for more.
            tokens.append(NoToken(sequence))
        return tokens

    def cancel(self, sequence: str) -> None:
        self._held.pop(sequence, None)
        if sequence in self._ended:
            self._ended.remove(sequence)
        else:
            self._process.send({"cancel": sequence})

    def usage(self) -> Usage:
        """EngineGone when vLLM is: also where nobody is answered just then."""
        if self._process.has_ended:
            raise self._process.gone()
        return Usage(
            len(self._held), self._slots, sum(held.tokens for held in self._held.values()), self._room, self._reused
        )

    def close(self) -> None:
        self._process.kill()


def sampling_arguments(sampling: Sampling, ends: Sequence[int]) -> dict[str, Any]:
    """vLLM's `SamplingParams` of ours."""
    return {
        # A `top_p` of 0, which vLLM does not take, leaves the likeliest token.
        "temperature": sampling.temperature if sampling.top_p > 0 else 0.0,
        "top_p": sampling.top_p or 1.0,
        "top_k": sampling.top_k,
        "seed": None if sampling.seed is None else sampling.seed % _SEEDS,
        "max_tokens": sampling.max_tokens,
        # A step has no other end than those that the package names.
        "ignore_eos": True,
        "stop_token_ids": [] if sampling.ignore_eos else list(ends),
        "logprobs": sampling.logprobs,
        # Under a name of its own, because vLLM's has to be made there.
        **({"json": sampling.schema} if sampling.schema is not None else {}),
    }


def make_vllm(text: TextSpec, folder: Path, precision: str) -> VllmEngine:
    """Starts vLLM on the packaged model, or on the mounted one that it was packaged of; RecordError where it cannot."""
    if text.vllm is None:
        raise RecordError("`text.vllm`: missing beside the engine `vllm`")
    try:
        if text.vllm.weights is not None:
            folder = Path(text.vllm.weights)
            check(folder, text.vllm.files, whole=text.vllm.check == "whole")
        process = VllmProcess(text.vllm.python, engine_arguments(text, folder, precision))
        return VllmEngine(process, slots=text.slots, ends=text.ends, step_timeout_s=text.vllm.step_timeout_s)
    except (OtherWeights, EngineGone) as err:
        raise RecordError(str(err)) from err


def engine_arguments(text: TextSpec, folder: Path, precision: str) -> dict[str, Any]:
    """vLLM's `EngineArgs` of a package; what the spec's `args` may say is checked where it is read."""
    return {
        **(text.vllm.args if text.vllm else {}),
        "model": str(folder),
        "dtype": _DTYPES[precision],
        "max_model_len": text.context,
        "max_num_seqs": text.slots,
        # Everyone's token of a step, and a piece of the prompts.
        "max_num_batched_tokens": text.slots + text.prefill_chunk,
        # Without it a prompt that is longer than a step would be refused.
        "enable_chunked_prefill": True,
        # No pickles, and no code that a model brings.
        "load_format": "safetensors",
        "trust_remote_code": False,
        # A `generation_config.json` changes no request's sampling.
        "generation_config": "vllm",
        "disable_log_stats": True,
    }
