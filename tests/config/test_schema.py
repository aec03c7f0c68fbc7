"""The JSON Schema of a spec: what editors complete a spec by."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from golden import check_golden
from specs import ROOT, changed

import marina
from marina.config.schema import render_schema

FILE = ROOT / "config/spec.schema.json"
EXAMPLES = sorted((ROOT / "config/examples").glob("*/spec.yaml"))
VALIDATOR = jsonschema.Draft7Validator(json.loads(render_schema()))


def test_the_shipped_schema_is_the_printed_one(capsys: pytest.CaptureFixture[str]) -> None:
    check_golden(render_schema(), FILE)
    assert marina.main(["check", "--schema"]) == 0
    assert capsys.readouterr().out == FILE.read_text(encoding="utf-8")
    jsonschema.Draft7Validator.check_schema(json.loads(render_schema()))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.parent.name)
def test_each_example_names_the_schema_that_takes_it(file: Path) -> None:
    first, text = file.read_text(encoding="utf-8").split("\n", 1)
    assert (file.parent / first.removeprefix("# yaml-language-server: $schema=")).resolve() == FILE
    assert list(VALIDATOR.iter_errors(yaml.safe_load(text))) == []


def test_each_field_is_explained() -> None:
    definitions = json.loads(render_schema())["$defs"]
    fields = {
        f"{section}.{name}": field
        for section, definition in definitions.items()
        for name, field in definition.get("properties", {}).items()
    }
    assert len(fields) > 100
    # A section explains itself.
    assert [name for name, field in fields.items() if not {"description", "$ref"} & field.keys()] == []


@pytest.mark.parametrize(
    "changes",
    [
        {"serving.queu": 5},
        {"serving.queue": "many"},
        {"model.precision": "fp8"},
        {"model.inputs": {"x": {"shape": [3]}}},
        {"model.handler": "tensor", "model.image": {"height": 1, "width": 1}},
        {"model.handler": "audio"},
        {"name": "X Y"},
    ],
    ids=str,
)
def test_what_a_spec_refuses_in_a_field_the_schema_refuses(changes: dict[str, Any]) -> None:
    assert not VALIDATOR.is_valid(changed(changes))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"kubernetes.resources": {"cpu": 2, "memory": "1Gi"}},
        {"model.handler": "./mine.py:Mine", "model.files": ["words.txt"]},
        {"slo": {"ttft_p99_ms": 5, "itl_p99_ms": 1}},
        {"scaling.target": "50%"},
        {"slo": None, "serving.access_log": "off"},
    ],
    ids=str,
)
def test_what_a_spec_takes_the_schema_takes(changes: dict[str, Any]) -> None:
    assert list(VALIDATOR.iter_errors(changed(changes))) == []
