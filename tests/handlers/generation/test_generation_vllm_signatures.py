"""The names that Marina uses of vLLM, and those of the stand-in, exist in vLLM's own sources."""

import dataclasses
import importlib.util
import inspect
import sys
from types import ModuleType
from typing import Any

import pytest
from generating import TEXT
from vllm_signatures import RECORDED, recorded

from marina.config.combinations.vllm import ARGUMENTS
from marina.handlers.generation.engine import Sampling
from marina.handlers.generation.engines.vllm_engine import engine_arguments, sampling_arguments
from marina.handlers.record import TextSpec, VllmSpec


@pytest.fixture
def standin(monkeypatch) -> ModuleType:
    """The stand-in as a module that no other test can import."""
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", ModuleType("vllm.sampling_params"))
    found_by = importlib.util.spec_from_file_location("standin_vllm", RECORDED.parent / "vllm.py")
    assert found_by is not None
    assert found_by.loader is not None
    module = importlib.util.module_from_spec(found_by)
    monkeypatch.setitem(sys.modules, "standin_vllm", module)
    found_by.loader.exec_module(module)
    return module


def test_every_field_and_parameter_of_the_stand_in_exists_in_vllm(standin: ModuleType) -> None:
    known = recorded()
    for name in ("EngineArgs", "SamplingParams", "StructuredOutputsParams", "StructuredOutputsConfig"):
        assert {field.name for field in dataclasses.fields(getattr(standin, name))} <= {*known[name]}, name
    assert {member.name for member in standin.RequestOutputKind} <= {*known["RequestOutputKind"]}
    for name, parameters in known.items():
        kind, _, method = name.partition(".")
        if kind == "LLMEngine" and method:
            own = [each for each in inspect.signature(getattr(standin.LLMEngine, method)).parameters if each != "self"]
            assert own == parameters[: len(own)], method


def test_every_attribute_of_the_stand_ins_answers_exists_in_vllm(standin: ModuleType) -> None:
    known = recorded()
    request = standin._Request([5, 6], standin.SamplingParams(logprobs=1))
    output: Any = standin._next("a", request)
    assert {*vars(output)} <= {*known["RequestOutput.__init__"]}
    assert {*vars(output.outputs[0])} <= {*known["CompletionOutput"]}
    assert {*vars(output.outputs[0].logprobs[0][5])} <= {*known["Logprob"]}
    assert {"num_gpu_blocks", "block_size"} <= {*known["CacheConfig"]}


def test_every_argument_that_vllm_gets_exists_in_vllm() -> None:
    known = recorded()
    settings = VllmSpec("python", None, dict.fromkeys(ARGUMENTS, 1), {})
    text = TextSpec(**TEXT | {"engine": "vllm"}, vllm=settings)
    assert engine_arguments(text, RECORDED.parent, "bf16").keys() <= {*known["EngineArgs"]}
    # `vllm_runner.py` makes `structured_outputs` of `json`.
    assert sampling_arguments(Sampling(schema="{}"), []).keys() - {"json"} <= {*known["SamplingParams"]}
    assert {"detokenize", "output_kind", "structured_outputs"} <= {*known["SamplingParams"]}
