"""The spec of an encoder and its errors; `test_spec.py` has the rest."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from specs import changed

from config.errors import SpecError
from config.load import parse_spec

ENCODER = {"model.source": "hf:./model", "model.handler": "text", "model.task": "classify", "model.weights": None}
ERRORS: list[Any] = [
    pytest.param(
        {"model.task": "embed", "model.handler": "text"},
        "spec.yaml:3: `model.source`: got "
        "`torchvision:resnet18`, allowed with a `task`: `hf:./folder`\n\nhint: delete `task`",
        id="a task for another source",
    ),
    pytest.param(
        {"model.encoding.max_tokens": 8},
        "spec.yaml:5: `model.encoding`: only for a model with a `task`\n\n"
        "hint: add `task: embed`, or delete `encoding`",
        id="an encoding without a task",
    ),
    pytest.param(
        ENCODER | {"model.weights": "random"},
        "spec.yaml:4: `model.weights`: got `random`, but `hf:./model` contains its weights\n\nhint: delete `weights`",
        id="weights beside a folder",
    ),
    pytest.param(
        ENCODER | {"model.inputs": {"x": {"shape": [3]}}},
        "spec.yaml:6: `model.inputs`: not for the `text` "
        "handler, whose model's folder says it\n\nhint: delete `inputs`",
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
