"""Marina's program around a real vLLM, if one is installed: `make check-vllm VLLM_PYTHON=FILE`."""

import re
from pathlib import Path
from typing import Any

import pytest
from generating import TEXT as FAKE
from packages import VLLM_PYTHON
from specs import TALES
from waiting import eventually

from marina.handlers.generation.engine import NoToken, Sampling, Token
from marina.handlers.generation.engines.llama import Llama
from marina.handlers.generation.engines.network_engines import TorchEngine
from marina.handlers.generation.engines.slots import Slots
from marina.handlers.generation.engines.vllm_engine import make_vllm
from marina.handlers.generation.tokenizer import ModelTokenizer
from marina.handlers.record import TextSpec, VllmSpec

MODEL = TALES.parent / "model"
TEXT: dict[str, Any] = FAKE | {"engine": "vllm", "context": 256, "slots": 4, "prefill_chunk": 256, "ends": (0,)}


def written(engine: Any, sequence: str, prompt: list[int], sampling: Sampling) -> list[Token | NoToken]:
    engine.add(sequence, prompt, sampling)
    tokens: list[Token | NoToken] = []
    while len(tokens) < (sampling.max_tokens or 1) and NoToken(sequence) not in tokens:
        tokens += [each for each in engine.step() if each.sequence == sequence]
    engine.cancel(sequence)
    return tokens


def in_session(leader: int) -> list[int]:
    """The living processes of a session, with its leader."""
    processes = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(session) == leader and state != "Z":
            processes.append(int(stat.parent.name))
    return processes


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(VLLM_PYTHON is None, reason="no VLLM_PYTHON, a Python with vLLM")
def test_a_real_vllm_writes_the_same_tokens_and_leaves_no_process() -> None:
    # With vLLM's CPU build, `gpu_memory_utilization` is a share of the machine's memory.
    settings = VllmSpec(str(VLLM_PYTHON), None, {"enforce_eager": True, "gpu_memory_utilization": 0.2}, {})
    text = TextSpec(**TEXT, vllm=settings)
    engine = make_vllm(text, MODEL, "fp32")
    prompt = ModelTokenizer(MODEL).encode("Once upon a time")
    greedy = Sampling(temperature=0, max_tokens=24, logprobs=2)
    model = Llama(MODEL, precision="fp32", slots=1, context=256)
    expected = written(TorchEngine(model, Slots(1, context=256, prefill_chunk=64)), "a", prompt, greedy)
    got = [each for each in written(engine, "a", prompt, greedy) if isinstance(each, Token)]
    assert [each.token for each in got] == [each.token for each in expected if isinstance(each, Token)]
    for ours, theirs in zip(expected, got, strict=False):
        assert isinstance(ours, Token)
        assert theirs.logprob == pytest.approx(ours.logprob, abs=1e-3)
        assert [at for at, _ in theirs.likeliest] == [at for at, _ in ours.likeliest]
    seeded = Sampling(seed=-1, max_tokens=16)
    twice = [[each.token for each in written(engine, name, prompt, seeded) if isinstance(each, Token)] for name in "bc"]
    assert twice[0] == twice[1]
    refused = written(engine, "d", prompt, Sampling(temperature=9, max_tokens=4))
    assert refused == [NoToken("d")]
    schema = '{"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 2}'
    formed = written(engine, "e", prompt, Sampling(temperature=0, max_tokens=24, schema=schema))
    answer = ModelTokenizer(MODEL).decode([each.token for each in formed if isinstance(each, Token)])
    # White space is allowed between the parts, and the tales model writes a lot of it.
    assert re.fullmatch(r"\s*(\[\s*([12]\s*(,\s*([12]\s*\]?)?)?)?)?\s*", answer)
    assert engine.usage().sequences == 0
    leader = engine._process.pid
    assert len(in_session(leader)) > 1
    # As if the worker was killed, and nothing tells vLLM to end.
    assert engine._process._process.stdin is not None
    engine._process._process.stdin.close()
    eventually(lambda: not in_session(leader), within_s=60)
