"""Stands in for vLLM where it is not installed: the parts that `vllm_runner.py` uses, and nothing more. It repeats the
prompt, one token per step; some tokens at the end of a prompt make it misbehave."""

import os
import signal
import sys
import time
import types
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import Any

__version__ = "0.32.0+standin"

# The engine misbehaves if a prompt ends with one of these tokens.
DIES, HANGS, PRINTS, IS_REFUSED = 201, 202, 203, 204
_BLOCK = 16
_STEP_S = 0.002


class RequestOutputKind(Enum):
    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


@dataclass
class StructuredOutputsParams:
    json: str | dict[str, Any] | None = None


@dataclass
class SamplingParams:
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] | None = None
    min_p: float = 0.0
    min_tokens: int = 0
    prompt_logprobs: int | None = None
    max_tokens: int | None = 16
    logprobs: int | None = None
    detokenize: bool = True
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    structured_outputs: "StructuredOutputsParams | None" = None

    def __post_init__(self) -> None:
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}.")
        if not 0 <= self.temperature <= 2:
            raise ValueError(f"temperature must be in [0, 2], got {self.temperature}.")


@dataclass
class StructuredOutputsConfig:
    backend: str = "auto"


@dataclass
class EngineArgs:
    model: str
    dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    enable_chunked_prefill: bool | None = None
    load_format: str = "auto"
    trust_remote_code: bool = False
    generation_config: str = "auto"
    disable_log_stats: bool = False
    tensor_parallel_size: int = 1
    gpu_memory_utilization: float = 0.92
    enforce_eager: bool = False
    quantization: str | None = None
    structured_outputs_config: StructuredOutputsConfig = field(default_factory=StructuredOutputsConfig)


@dataclass
class _Request:
    prompt: "list[int]"
    params: SamplingParams
    written: list[int] = field(default_factory=list)


class LLMEngine:
    def __init__(self, arguments: EngineArgs) -> None:
        if not os.path.isfile(os.path.join(arguments.model, "config.json")):
            raise OSError(f"no model in {arguments.model}")
        print("output of a library")
        os.write(1, b"and output of a kernel\n")
        self.arguments = arguments
        # In blocks, twice the room that its sequences may need.
        blocks = 2 * (arguments.max_num_seqs or 1) * (arguments.max_model_len or 1) // _BLOCK
        self.vllm_config = SimpleNamespace(cache_config=SimpleNamespace(num_gpu_blocks=blocks, block_size=_BLOCK))
        self._requests: dict[str, _Request] = {}

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> Any:
        return cls(engine_args)

    def add_request(self, request_id: str, prompt: dict[str, list[int]], params: SamplingParams) -> str:
        tokens = prompt["prompt_token_ids"]
        if tokens[-1] == IS_REFUSED:
            raise ValueError("this prompt is refused")
        if not tokens or len(tokens) >= (self.arguments.max_model_len or 0):
            raise ValueError("the prompt is longer than the maximum model length")
        self._requests[request_id] = _Request(tokens, params)
        return request_id

    def abort_request(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            self._requests.pop(request_id, None)

    def has_unfinished_requests(self) -> bool:
        return bool(self._requests)

    def step(self) -> list[Any]:
        time.sleep(_STEP_S)
        outputs = []
        for request_id, request in list(self._requests.items())[: self.arguments.max_num_seqs]:
            _misbehave(request.prompt[-1])
            output = _next(request_id, request)
            outputs.append(output)
            if output.finished:
                del self._requests[request_id]
        return outputs


def _next(request_id: str, request: _Request) -> Any:
    params = request.params
    token = request.prompt[len(request.written) % len(request.prompt)]
    request.written.append(token)
    chances = None
    if params.logprobs is not None:
        # The written token has rank 3, so that with fewer than 3 likeliest ones it comes after them.
        others = [((token + place) % 200, -0.1 * place, place) for place in range(1, params.logprobs + 1) if place != 3]
        chances = [{at: SimpleNamespace(logprob=value, rank=rank) for at, value, rank in others}]
        chances[0][token] = SimpleNamespace(logprob=-0.3, rank=3)
    reason = "length" if len(request.written) == params.max_tokens else None
    reason = "stop" if token in (params.stop_token_ids or ()) else reason
    answer = SimpleNamespace(token_ids=[token], logprobs=chances, finish_reason=reason)
    cached = len(request.prompt) // _BLOCK * _BLOCK
    return SimpleNamespace(
        request_id=request_id, outputs=[answer], finished=reason is not None, num_cached_tokens=cached
    )


def _misbehave(token: int) -> None:
    if token == DIES:
        os.kill(os.getpid(), signal.SIGKILL)
    if token == HANGS:
        time.sleep(3600)
    if token == PRINTS:
        print("in the middle of an answer", flush=True)
        os.write(1, b"\x00\x00\x00\x05{}{}{")


_parameters = types.ModuleType("vllm.sampling_params")
_parameters.RequestOutputKind = RequestOutputKind  # type: ignore[attr-defined]
_parameters.StructuredOutputsParams = StructuredOutputsParams  # type: ignore[attr-defined]
sys.modules["vllm.sampling_params"] = _parameters
