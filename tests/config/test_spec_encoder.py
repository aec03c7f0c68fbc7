"""The spec of an encoder and its errors; `test_spec.py` has the rest."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml
from specs import changed

from marina.config.combinations import find_warnings
from marina.config.errors import SpecError
from marina.config.load import parse_spec
from marina.config.spec import Spec

ENCODER = {"model.source": "hf:./model", "model.handler": "text", "model.task": "classify", "model.weights": None}
ERRORS: list[Any] = [
    pytest.param(
        {"model.task": "embed", "model.handler": "text", "model.weights": None},
        "spec.yaml:3: `model.source`: got `torchvision:resnet18`, allowed for the `text` handler: "
        "`hf:./folder` or `hf:OWNER/NAME`",
        id="a task for another source",
    ),
    pytest.param(
        {"model.encoding.max_tokens": 8},
        "spec.yaml:5: `model.encoding`: not for `handler: image`, only for: `handler: text` with a `task`\n\n"
        "hint: delete `encoding`",
        id="an encoding without a task",
    ),
    pytest.param(
        ENCODER | {"model.weights": "random"},
        "spec.yaml:4: `model.weights`: not for `handler: text` with a `task`, only for: `handler: image`, "
        "`handler: tensor`, a handler of your own\n\nhint: delete `weights`",
        id="weights beside a folder",
    ),
    pytest.param(
        ENCODER | {"model.inputs": {"x": {"shape": [3]}}},
        "spec.yaml:6: `model.inputs`: not for `handler: text` with a `task`, only for: `handler: tensor`, a handler of "
        "your own\n\nhint: delete `inputs`",
        id="inputs beside a folder",
    ),
    pytest.param(
        ENCODER | {"model.task": "rerank", "model.labels": "labels.txt"},
        "spec.yaml:6: `model.labels`: not for `task: rerank`, whose answers have no classes\n\nhint: delete `labels`",
        id="labels of no classes",
    ),
    pytest.param(
        ENCODER | {"model.encoding.pooling": "cls"},
        "spec.yaml:7: `model.encoding.pooling`: only for `task: embed`\n\nhint: delete `pooling`",
        id="pooling of what is no embedding",
    ),
    pytest.param(
        ENCODER | {"model.encoding": {"max_tokens": 8, "buckets": [4]}},
        "spec.yaml:8: `model.encoding.buckets`: got `[4]`, allowed: different sizes in ascending order up to "
        "`max_tokens`, 8",
        id="buckets below the longest text",
    ),
]


@pytest.mark.parametrize(("change", "text"), ERRORS)
def test_an_error_of_an_encoder_is_a_whole_sentence(change: dict[str, Any], text: str) -> None:
    with pytest.raises(SpecError) as refusal:
        parse_spec(yaml.safe_dump(changed(change), sort_keys=False), Path("spec.yaml"), files=False)
    assert str(refusal.value) == text


MADE_BY = "sentence_transformers.models"
POOLINGS: list[Any] = [
    ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False, "include_prompt": True}, "`cls`"),
    ({"pooling_mode": "cls"}, "`cls`\n\nhint: pooling: cls"),
    ({"pooling_mode_lasttoken": True}, "`last`\n\nhint: pooling: last"),
    ({"pooling_mode_mean_tokens": True}, None),
    ({}, None),
]


def check_embedder(folder: Path, modules: object, pooling: dict[str, Any]) -> Spec:
    """Checks the spec of a model that `sentence-transformers` has saved."""
    return check_folder(folder, "embed", {}, {"modules.json": modules, "1_Pooling/config.json": pooling})


def check_folder(folder: Path, task: str, config: dict[str, Any], more: dict[str, object] | None = None) -> Spec:
    """Checks the spec of an encoder with this configuration, and these further files."""
    (folder / "model/1_Pooling").mkdir(parents=True)
    (folder / "model/model.safetensors").touch()
    for name, content in ({"config.json": config, "tokenizer.json": {}} | (more or {})).items():
        (folder / "model" / name).write_text(json.dumps(content))
    return parse_spec(yaml.safe_dump(changed(ENCODER | {"model.task": task})), folder / "spec.yaml")


@pytest.mark.parametrize(("pooling", "message"), POOLINGS)
def test_an_embedding_is_made_as_its_folder_says(pooling: dict[str, Any], message: str | None, tmp_path: Path) -> None:
    modules = [{"type": f"{MADE_BY}.{kind}", "path": path} for kind, path in (("Transformer", ""), ("Normalize", "2"))]
    modules.insert(1, {"type": f"{MADE_BY}.Pooling", "path": "1_Pooling"})
    refusal = f"`model.encoding.pooling`: got `mean`, but .* are made by {message}"
    with pytest.raises(SpecError, match=refusal) if message else nullcontext():
        check_embedder(tmp_path, modules, pooling)


@pytest.mark.parametrize(
    ("pooling", "got"),
    [
        ({"pooling_mode_weightedmean_tokens": True}, "weightedmean_tokens"),
        ({"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}, "cls and max_tokens"),
    ],
)
def test_a_pooling_that_is_not_computed_needs_a_network_of_its_own(
    pooling: dict[str, Any], got: str, tmp_path: Path
) -> None:
    with pytest.raises(SpecError) as refusal:
        check_embedder(tmp_path, [{"type": f"{MADE_BY}.Pooling", "path": "1_Pooling"}], pooling)
    assert (
        f"1_Pooling/config.json`: got `{got}`, allowed: `cls`, `lasttoken`, `mean`\n\nhint: source: ./model.py:build"
        in str(refusal.value)
    )


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ([{"type": f"{MADE_BY}.CNN", "path": "2_CNN"}], "got `CNN`, allowed: `Transformer`, `Pooling`, `Dense`"),
        ([{"type": f"{MADE_BY}.Dense", "path": "2_Dense"}], r"2_Dense` has no `config\.json`"),
        ({"0": "Transformer"}, "is not a list of modules"),
        ([{"type": f"{MADE_BY}.Pooling", "path": "3"}], "has no `config.json`"),
    ],
)
def test_modules_that_are_not_computed_are_refused(modules: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=message):
        check_embedder(tmp_path, modules, {})


def test_what_else_a_library_does_to_each_text_is_a_warning(tmp_path: Path) -> None:
    prompts = {"prompts": {"query": "query: ", "document": ""}, "default_prompt_name": "query"}
    files = {
        "sentence_bert_config.json": {"do_lower_case": True, "max_seq_length": 16},
        "config_sentence_transformers.json": prompts,
    }
    modules = [{"type": f"{MADE_BY}.{kind}", "path": ""} for kind in ("Transformer", "Normalize")]
    spec = check_embedder(tmp_path, modules, {})
    assert list(find_warnings(spec)) == []
    for name, content in files.items():
        (tmp_path / "model" / name).write_text(json.dumps(content))
    more = ", and Marina does not: clients have to"
    assert list(find_warnings(spec)) == [
        f"`model.source`: `sentence-transformers` writes texts in lower case{more}",
        "`model.encoding.max_tokens`: 128, but `sentence-transformers` cuts off this folder's texts after 16: "
        "`max_tokens: 16` with `truncate: right` gives the same numbers",
    ]
    (tmp_path / "model/model_head.pkl").touch()
    head = f"`model.source`: `setfit` classifies embeddings by `model_head.pkl`{more}"
    assert list(find_warnings(spec))[1] == head
    (tmp_path / "model/sentence_bert_config.json").write_text("{")
    with pytest.raises(SpecError, match="cannot be read as JSON"):
        parse_spec(yaml.safe_dump(changed(ENCODER | {"model.task": "embed"})), tmp_path / "spec.yaml")


@pytest.mark.parametrize(
    ("config", "warned"),
    [
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, True),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, True),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}, False),
        ({"sentence_transformers": {"version": "5.0"}}, False),
    ],
)
def test_scores_that_a_library_makes_in_another_way_are_a_warning(
    config: dict[str, Any], warned: bool, tmp_path: Path
) -> None:
    spec = check_folder(tmp_path, "rerank", config)
    made_by = "`sentence-transformers` makes scores by `Identity`, and Marina by `Sigmoid`"
    text = f"`model.source`: {made_by}: their order is the same"
    assert list(find_warnings(spec)) == [text] * warned


@pytest.mark.parametrize(
    ("task", "kind", "made_for"),
    [
        ("tokens", "Qwen2ForSequenceClassification", "classify"),
        ("classify", "Qwen2ForTokenClassification", "tokens"),
        ("classify", "BertForMaskedLM", "fill"),
        ("rerank", "BertModel", "embed"),
        ("rerank", "BertForSequenceClassification", None),
        ("embed", "BertForSequenceClassification", None),
        ("classify", "OwnClassifier", None),
    ],
)
def test_a_head_for_another_task_is_refused(task: str, kind: str, made_for: str | None, tmp_path: Path) -> None:
    message = f"`model.task`: got `{task}`, but the folder holds a `{kind}`\n\nhint: task: {made_for}"
    with pytest.raises(SpecError, match=message) if made_for else nullcontext():
        check_folder(tmp_path, task, {"architectures": [kind]})
