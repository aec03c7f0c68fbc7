"""The spec of a language model: its fields, where they land, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from specs import changed, tales_spec

from marina.config.combinations import find_warnings
from marina.config.errors import SpecError
from marina.config.hf_folder import FolderRefused, read_model_folder
from marina.config.load import parse_spec
from marina.config.render import render_model_config
from marina.config.spec import Spec

TALES = {"name": "tales", "model": {"source": "hf:./model", "handler": "text", "compile": "eager"}}


def spec_of(changes: dict[str, Any] | None = None, file: Path = Path("spec.yaml"), *, files: bool = False) -> Spec:
    return parse_spec(yaml.safe_dump(changed(changes or {}, TALES), sort_keys=False), file, files=files)


ERRORS: list[Any] = [
    pytest.param({"model.source": "./m.py:build", "model.weights": "random"}, "`model.source`: got `./m.py:build`, "
                 "allowed for the `text` handler: "
                 "`hf:./folder` or `hf:OWNER/NAME`", id="a network that does not write"),
    pytest.param({"model.handler": "tensor"}, "`model.source`: got `hf:./model`, allowed: `torchvision:NAME`, "
                 "`./file.py:factory`, `./program.pt2`; a folder needs `handler: text` or `image`",
                 id="a folder for another handler"),
    pytest.param({"model.weights": "random"}, "`model.weights`: not for `handler: text` without a `task`, only "
                 "for: `handler: image`, `handler: tensor`, a handler of your own\n\n"
                 "hint: delete `weights`", id="weights beside a folder"),
    pytest.param({"model.compile": "export"}, "`model.compile`: got `export`, allowed for the `text` handler: `aot`, "
                 "`eager`\n\nhint: compile: aot", id="an exported one"),
    pytest.param({"model.precision": "int8"}, "`model.precision`: got `int8`, allowed for the `text` handler with "
                 "`compile: eager`: `bf16`, `fp32`\n\nhint: compile: aot", id="an 8-bit one that is not compiled"),
    pytest.param({"model.precision": "int4"}, "`model.precision`: got `int4`, allowed for the `text` handler with "
                 "`compile: eager`: `bf16`, `fp32`\n\nhint: compile: aot", id="a 4-bit one that is not compiled"),
    pytest.param({"text.engine": "aot"}, "`text.engine`: got `aot`, which needs `compile: aot`\n\n"
                 "hint: delete `engine`, or compile: aot", id="an engine that is not compiled"),
    pytest.param({"model.labels": "l.txt"}, "`model.labels`: not for `handler: text` without a `task`, only for: "
                 "`handler: image`, a handler of your own, `handler: text` with a `task`\n\n"
                 "hint: delete `labels`", id="labels"),
    pytest.param({"model.batch_sizes": [1, 2]}, "`model.batch_sizes`: not for `handler: text` without a `task`, "
                 "only for: ", id="batches"),
    pytest.param({"serving.max_batch": 2}, "`serving.max_batch`: not for a language model, which has slots\n\n"
                 "hint: delete it, and set `text.slots`", id="a batch"),
    pytest.param({"serving.max_worker_memory_mb": 900}, "`serving.max_worker_memory_mb`: not for a language model, "
                 "whose worker never has a moment without open answers to restart in\n\nhint: delete "
                 "`max_worker_memory_mb`", id="a new worker"),
    pytest.param({"serving.workers": 2}, "`serving.workers`: got 2, allowed for the `text` handler: 1, because one "
                 "would keep the others waiting\n\nhint: workers: 1, with more `threads`", id="two workers"),
    pytest.param({"serving.device": "cuda", "kubernetes.resources.gpu": 1}, "`serving.device`: got `cuda`, allowed for "
                 "the `text` handler: `cpu`, or the engine `vllm`\n\nhint: device: cpu, or engine: vllm under `text`",
                 id="a GPU"),
    pytest.param({"text.max_tokens": 2048}, "`text.max_tokens`: got 2048, but prompt and answer together have 2048 "
                 "tokens, `text.context`\n\nhint: raise `text.context`, or lower `text.max_tokens`", id="no prompt"),
    pytest.param({"text": {"engine": "fake", "context": 4096, "max_tokens": 2560}},
                 "`serving.drain_timeout_s`: got 30, but the longest answer takes 51.2 s\n\n"
                 "hint: raise it, or lower `text.max_tokens`", id="a drain that cuts answers"),
    pytest.param({"load.sample": "cat.png"}, "`load.sample`: got `cat.png`, allowed for the `text` handler: a `.json` "
                 "file", id="a picture to send"),
    pytest.param({"text.engine": "onnx"}, "`text.engine`: got `onnx`, allowed: `aot`, `auto`, `fake`, `torch`, `vllm`",
                 id="another engine"),
    pytest.param({"text.route": {"to": "tales"}}, "`text.route.to`: got `tales`, which is this model\n\n"
                 "hint: the name of another one", id="a route in a circle"),
    pytest.param({"text.route": {"to": "small", "short_tokens": 2048}}, "`text.route.short_tokens`: got 2048, but no "
                 "prompt is longer than `text.context`, 2048\n\nhint: fewer, or serve the small model alone",
                 id="a route for everything"),
    pytest.param({"text.sessions": {"ttl_s": 60}}, "`text.sessions.redis`: missing", id="conversations kept nowhere"),
    pytest.param({"text.route": {"short_tokens": 5}}, "`text.route.to`: missing", id="a route to nowhere"),
    pytest.param({"text.slots": 0}, "`text.slots`: got `0`, allowed: 1 or more", id="no slots"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), ERRORS)
def test_each_refusal_says_what_to_type(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as raised:
        spec_of(changes)
    assert message in str(raised.value)


@pytest.mark.parametrize("precision", ["int4", "int8"])
def test_the_engine_is_chosen_by_what_is_compiled(precision: str) -> None:
    changes = {"model.compile": "aot", "model.precision": precision, "model.cpu_target": "x86-64-v3"}
    assert [spec_of(changes).writing.engine, spec_of().writing.engine] == ["aot", "torch"]
    assert spec_of(changes).completed()["text"]["engine"] == "aot"


def test_text_is_only_for_language_models() -> None:
    data = {"name": "x", "model": {"source": "torchvision:resnet18", "weights": "random"}, "text": {"slots": 2}}
    with pytest.raises(SpecError, match="`text`: not for the `image` handler, which does not write text"):
        parse_spec(yaml.safe_dump(data), Path("spec.yaml"), files=False)


def test_torchserve_sees_slots_and_waiting_requests_as_its_batch_size() -> None:
    settings = yaml.safe_load(render_model_config(spec_of({"text": {"slots": 4}, "serving.queue": 6})))
    # Eight more requests reach the handler, which answers when to try again.
    assert (settings["batchSize"], settings["continuousBatching"]) == (18, True)
    assert (settings["minWorkers"], settings["maxWorkers"]) == (1, 1)


def test_a_spec_with_every_default_written_out_is_the_same_spec() -> None:
    spec = spec_of({"text": {"slots": 4}})
    for written in (spec.completed(), spec.model_dump(mode="json", exclude_none=True)):
        assert parse_spec(yaml.safe_dump(written), Path("spec.yaml"), files=False).completed() == spec.completed()


def test_as_many_requests_may_wait_as_there_are_slots() -> None:
    assert spec_of({"text": {"slots": 4}}).completed()["serving"]["queue"] == 4
    assert "continuousBatching" not in render_model_config(
        parse_spec("{name: x, model: {source: torchvision:resnet18, weights: random}}", Path("spec.yaml"), files=False)
    )


def folder(path: Path, **files: object) -> Path:
    path.mkdir(exist_ok=True)
    for name, content in files.items():
        (path / name.replace("__", ".")).write_text(content if isinstance(content, str) else json.dumps(content))
    return path


GOOD: dict[str, object] = {"config__json": {"max_position_embeddings": 64}, "tokenizer__json": {}}


def test_a_folder_is_read_with_its_files(tmp_path: Path) -> None:
    read = read_model_folder(folder(tmp_path / "m", **GOOD, model__safetensors="", notes__txt=""))
    assert ([file.name for file in read.files], read.longest) == (
        ["config.json", "model.safetensors", "tokenizer.json"],
        64,
    )


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "has no `config.json`"),
        ({"config__json": "{"}, "cannot be read as JSON"),
        ({"config__json": [1]}, "is not a JSON object"),
        ({"config__json": {"auto_map": {}}}, "comes with its own code"),
        ({"config__json": {}, "tokenizer_config__json": {"auto_map": {}}}, "comes with its own code"),
        ({"config__json": {}}, "has no `tokenizer.json`"),
        (GOOD | {"config__json": {"max_2d_position_embeddings": 8}}, "where words are on a page"),
        (GOOD, "has no `.safetensors`"),
        (GOOD | {"pytorch_model__bin": ""}, "and `pytorch_model.bin` may hold code"),
    ],
)
def test_a_folder_that_cannot_be_packed_says_why(files: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(FolderRefused, match=message):
        read_model_folder(folder(tmp_path / "m", **files))


def test_check_looks_into_the_folder(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no such folder"):
        spec_of(file=tmp_path / "spec.yaml", files=True)
    folder(tmp_path / "model", **GOOD, model__safetensors="")
    with pytest.raises(SpecError, match=r"`text\.context`: got 2048, but the model was made for 64 tokens"):
        spec_of(file=tmp_path / "spec.yaml", files=True)
    small = {"text": {"context": 64, "max_tokens": 32}}
    assert spec_of(small, file=tmp_path / "spec.yaml", files=True).writing.context == 64


def test_a_context_may_not_be_longer_than_the_window_of_the_attention(tmp_path: Path) -> None:
    def context_of(**text: object) -> int:
        return spec_of({"text": text}, file=tmp_path / "spec.yaml", files=True).writing.context

    config = {"max_position_embeddings": 4096, "sliding_window": 1024}
    folder(tmp_path / "model", **GOOD | {"config__json": config}, model__safetensors="")
    message = r"`text\.context`: got 2048, but the model's attention reaches back only 1024 tokens"
    with pytest.raises(SpecError, match=message):
        context_of(context=2048)
    assert context_of(context=1024) == 1024
    folder(tmp_path / "model", config__json=config | {"use_sliding_window": False})
    assert context_of(context=2048) == 2048


@pytest.mark.parametrize(
    ("config", "longest", "window"),
    [
        ({"model_type": "mistral"}, None, 4096),
        ({"model_type": "mistral", "sliding_window": None}, None, None),
        ({"model_type": "qwen2", "sliding_window": 4096}, None, None),
        ({"model_type": "qwen3", "sliding_window": 512, "use_sliding_window": True}, None, 512),
        ({"model_type": "xlm-roberta", "max_position_embeddings": 514, "pad_token_id": 1}, 512, None),
        ({"model_type": "mpnet", "max_position_embeddings": 514}, 512, None),
        ({"model_type": "bert", "max_position_embeddings": 512, "pad_token_id": 0}, 512, None),
        ({"model_type": "gpt2", "n_positions": 128}, 128, None),
        ({"model_type": "t5", "n_positions": 512}, None, None),
    ],
)
def test_the_limits_of_a_model_are_those_that_its_kind_has(
    config: dict[str, object], longest: int | None, window: int | None, tmp_path: Path
) -> None:
    read = read_model_folder(folder(tmp_path / "m", **GOOD | {"config__json": config}, model__safetensors=""))
    assert (read.longest, read.window) == (longest, window)


@pytest.mark.parametrize(
    ("limit", "allowed"),
    [
        pytest.param(10**400, "a finite number", id="more than a float holds"),
        pytest.param(-(10**400), "a finite number", id="less than a float holds"),
        pytest.param(1e300, "2147483647 or less", id="more than sums hold"),
    ],
)
def test_a_limit_too_large_to_calculate_with_is_refused_by_its_own_name(limit: float, allowed: str) -> None:
    with pytest.raises(SpecError) as raised:
        spec_of({"slo": {"ttft_p99_ms": limit, "itl_p99_ms": 0.5}})
    (problem,) = raised.value.problems
    assert (problem.field, problem.text.rpartition(", allowed: ")[2]) == ("slo.ttft_p99_ms", allowed)


@pytest.mark.parametrize(("drain_s", "count"), [(60, 0), (20, 1)])
def test_answers_that_may_outlast_a_drain_are_a_warning(drain_s: int, count: int) -> None:
    spec = tales_spec({"slo": {"ttft_p99_ms": 500, "itl_p99_ms": 100}, "serving.drain_timeout_s": drain_s})
    assert len(list(find_warnings(spec))) == count
    assert all("may take 26 s: a stop would cut it off" in text for text in find_warnings(spec))
