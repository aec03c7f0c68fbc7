"""The fields of a spec about vLLM: where they land, and what is refused."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from specs import changed

from marina.config.combinations import find_warnings
from marina.config.errors import SpecError
from marina.config.load import parse_spec
from marina.config.spec import Spec

SERVED = {
    "name": "tales",
    "model": {"source": "hf:./model", "handler": "text", "compile": "eager", "precision": "bf16"},
    "text": {"engine": "vllm"},
}
ON_TWO_GPUS = {
    "serving.device": "cuda",
    "kubernetes.resources.gpu": 2,
    "text.vllm": {"args": {"tensor_parallel_size": 2, "gpu_memory_utilization": 0.9, "quantization": "awq"}},
}


def spec_of(changes: dict[str, Any] | None = None, file: Path = Path("spec.yaml"), *, files: bool = False) -> Spec:
    return parse_spec(yaml.safe_dump(changed(changes or {}, SERVED), sort_keys=False), file, files=files)


def arguments(**args: Any) -> dict[str, Any]:
    return {"text.vllm": {"args": args}}


ERRORS: list[Any] = [
    pytest.param(arguments(trust_remote_code=True), "`text.vllm.args.trust_remote_code`: not allowed: it runs code "
                 "that is not in the package\n\nhint: delete it", id="the model's own code"),
    pytest.param({"text.vllm": {"args": {"--trust-remote-code": True}}}, "not allowed: it runs code that is not in "
                 "the package", id="the model's own code, as on a command line"),
    pytest.param(arguments(worker_extension_cls="evil.Worker"), "not allowed: it runs code", id="a class of one's own"),
    pytest.param(arguments(max_model_len=4096), "`text.vllm.args.max_model_len`: not here: `text.context` sets it"
                 "\n\nhint: delete it, and set `text.context`", id="what another field says"),
    pytest.param(arguments(tensor_paralel_size=2), "hint: tensor_parallel_size: 2", id="a misspelt one"),
    pytest.param({"text.vllm": {"args": {"--tensor-parallel-size": 2}}}, "hint: tensor_parallel_size: 2",
                 id="one as on a command line"),
    pytest.param(arguments(api_key="secret"), "`text.vllm.args.api_key`: not allowed; allowed: `async_scheduling`, ",
                 id="one of its server"),
    pytest.param(arguments(tensor_parallel_size="2"), "`text.vllm.args.tensor_parallel_size`: got `2`, allowed: a "
                 "whole number from 1", id="a number that is none"),
    pytest.param(arguments(enforce_eager=1), "`text.vllm.args.enforce_eager`: got `1`, allowed: true or false",
                 id="a switch that is none"),
    pytest.param({"text.vllm.args": {"quantization": ["awq"]}}, "`text.vllm.args.quantization`: got "
                 '`["awq"]`, allowed: a number, text, `true` or `false`', id="a list"),
    pytest.param({"text.vllm.python": "python"}, "`text.vllm.python`: got `python`, allowed: "
                 "a path that begins with `/`", id="a Python that is nowhere"),
    pytest.param({"text": {"engine": "torch", "vllm": {}}}, "`text.vllm`: given, but `text.engine` is `torch`\n\n"
                 "hint: engine: vllm", id="for another engine"),
    pytest.param({"model.precision": "int8"}, "`model.precision`: got `int8`, allowed for the `text` handler with "
                 "`compile: eager`: `bf16`, `fp16`, `fp32`", id="8 bits"),
    pytest.param({"model.compile": "aot"}, "`text.engine`: got `vllm`, which needs `compile: eager`", id="compiled"),
    pytest.param(ON_TWO_GPUS | {"kubernetes.resources.gpu": 4}, "`kubernetes.resources.gpu`: got 4, but "
                 "`text.vllm.args` ask for 2, which is `tensor_parallel_size` × `pipeline_parallel_size`\n\nhint: "
                 "gpu: 2, or another "
                 "`tensor_parallel_size`", id="more GPUs than are used"),
    pytest.param({"text.vllm": {"weights": "/models/tales"}, "kubernetes.pod": {"volumes": {"w": {"emptyDir": {}}},
                 "mounts": {"/data": "w:ro"}}}, "`text.vllm.weights`: got `/models/tales`, but `kubernetes.pod.mounts` "
                 "has `/data`\n\nhint: mounts: {/models/tales: VOLUME:ro}, with that volume under `volumes`",
                 id="weights that are mounted elsewhere"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), ERRORS)
def test_each_refused_argument_of_vllm_says_what_to_type(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        spec_of(changes)


def test_vllm_needs_as_many_gpus_as_its_arguments_ask_for() -> None:
    spec = spec_of(ON_TWO_GPUS)
    assert (spec.workers, spec.vllm and spec.vllm.gpus) == (1, 2)
    assert spec.completed()["text"]["vllm"]["python"] == "/opt/vllm/bin/python"
    assert spec_of(ON_TWO_GPUS | {"text.vllm": {"args": {"tensor_parallel_size": 1, "pipeline_parallel_size": 2}}}).vllm


def test_settings_that_look_like_a_mistake_are_warnings(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (model / name).write_text("{}")
    with (model / "model.safetensors").open("wb") as weights:
        weights.truncate(140_000_000_000)
    spec = spec_of({"text.vllm": {"weights": "/models/tales"}}, tmp_path / "spec.yaml")
    assert list(find_warnings(spec)) == [
        "`text.vllm.weights`: `/models/tales`, but no volume is mounted in a pod: `kubernetes.pod.mounts`",
        "`serving.startup_timeout_s`: 300, but reading 140 GB at 250 MB/s, and a minute to compile, may take 620 s",
    ]
    patient = {"serving.startup_timeout_s": 900}
    assert list(find_warnings(spec_of(patient, tmp_path / "spec.yaml"))) == []


def test_weights_behind_a_broken_link_are_missing(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (model / name).write_text("{}")
    (model / "model.safetensors").symlink_to(tmp_path / "gone")
    assert list(find_warnings(spec_of({}, tmp_path / "spec.yaml"))) == []
    with pytest.raises(SpecError, match=r"`model.source`: `.*/model` has no `.safetensors`"):
        spec_of({}, tmp_path / "spec.yaml", files=True)
