"""Inputs that vary in length, and the errors about them; `test_spec.py` has the rest."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from specs import FILE_SOURCE, changed

from marina.config.errors import SpecError
from marina.config.load import parse_spec

ERRORS: list[Any] = [
    pytest.param(FILE_SOURCE | {"model.inputs": {"x": {"shape": [{"max": 8, "buckets": [2, 4]}]}}},
                 "spec.yaml:10: `model.inputs.x.shape.0.buckets`: got `[2, 4]`, allowed: different sizes in ascending "
                 "order up to `max`, 8", id="buckets below the largest"),
    pytest.param(FILE_SOURCE | {"model.inputs": {"x": {"shape": [{"max": 8, "buckets": "some"}]}}},
                 "spec.yaml:10: `model.inputs.x.shape.0.buckets`: got `some`, allowed: `dynamic` or a list",
                 id="buckets of what is dynamic"),
    pytest.param(FILE_SOURCE | {"model.inputs": {"x": {"shape": [{"max": 8}, {"max": 8}]}}}, "spec.yaml:8: "
                 "`model.inputs.x.shape`: two dimensions vary, allowed: one", id="two lengths in an input"),
    pytest.param(FILE_SOURCE | {"model.inputs": {"x": {"shape": [{"max": 8}]}, "y": {"shape": [{"max": 9}]}}},
                 "spec.yaml:11: `model.inputs.y.shape`: varies in another way than the input before it, allowed: one "
                 "length "
                 "for all inputs of a request", id="two lengths"),
    pytest.param(FILE_SOURCE | {"model.inputs": {"x": {"shape": [8]}, "m": {"mask_of": "x"}}}, "spec.yaml:11: "
                 "`model.inputs.m.mask_of`: got `x`, allowed: an input that varies: none", id="a mask of nothing"),
    pytest.param(FILE_SOURCE | {"model.inputs": {"x": {"shape": [{"max": 8}]}, "m": {"mask_of": "x", "shape": [8]}}},
                 "spec.yaml:12: `model.inputs.m.shape`: given, but a mask has the length of its input\n\nhint: delete "
                 "`shape`", id="a mask with a shape"),
    pytest.param(FILE_SOURCE | {"model.inputs": {"x": {"shape": [{"max": 8}]}, "m": {"mask_of": "x"},
                                                 "n": {"mask_of": "x"}}}, "spec.yaml:13: `model.inputs.n.mask_of`: a "
                 "second mask, after `m`; all inputs have the same length", id="two masks"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "text"), ERRORS)
def test_an_error_of_a_length_is_a_whole_sentence(change: dict[str, Any], text: str) -> None:
    with pytest.raises(SpecError) as refusal:
        parse_spec(yaml.safe_dump(changed(change), sort_keys=False), Path("spec.yaml"), files=False)
    assert str(refusal.value) == text
