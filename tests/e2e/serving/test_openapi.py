"""The OpenAPI description against the server it describes: requests made from it, good and bad, and their answers."""

import io
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image
from running import Running, running
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    positive_data_acceptance,
    response_schema_conformance,
    status_code_conformance,
)

from marina.archiver.package import package
from marina.config.load import parse_spec
from marina.config.progress import Progress

pytestmark = pytest.mark.e2e

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
MODEL = """
from torch import nn

class Mix(nn.Module):
    def forward(self, left, right, keep):
        return left * right.unsqueeze(-1), (left.sum(-1) * keep).to(left.dtype)

def build():
    return Mix()
"""
SPEC = """
name: mix
model:
  source: ./model.py:build
  weights: random
  handler: tensor
  compile: export
  inputs:
    left: {shape: [2, 3], min: -10, max: 10}
    right: {shape: [2], dtype: int32, min: 0, max: 5}
    keep: {shape: [2], dtype: bool}
  outputs: [product, total]
serving: {workers: 1, drain_propagation_s: 0, java_heap_mb: 128}
"""


def picture(kind: str, height: int, width: int, color: tuple[int, int, int]) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), color).save(buffer, kind)
    return buffer.getvalue()


def saved(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


SIDE, LEVEL = st.integers(1, 40), st.integers(0, 255)
for form in ("jpeg", "png", "webp", "gif", "tiff", "bmp"):
    schemathesis.openapi.media_type(
        f"image/{form}", st.builds(picture, st.just(form.upper()), SIDE, SIDE, st.tuples(LEVEL, LEVEL, LEVEL))
    )
schemathesis.openapi.media_type("application/x-npy", arrays(np.uint8, (8, 8, 1)).map(saved))


def described(server: Running) -> Any:
    with urllib.request.urlopen(f"{server.url}/openapi.json", timeout=60) as answer:
        return schemathesis.openapi.from_dict(json.load(answer))


def fuzz(server: Running, path: str, mode: GenerationMode, checks: list[Any], *, examples: int) -> set[int]:
    """Sends what the description of a path allows, or what it does not; the statuses that came back."""
    schema, seen = described(server), set()
    operation = next(iter(schema.include(path=path).get_all_operations())).ok()

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        # TorchServe itself answers 500 to a form that it cannot take apart, before any handler sees it.
        assume(mode == GenerationMode.POSITIVE or case.media_type != "multipart/form-data")
        case.body = whole(case.body)
        seen.add(case.call_and_validate(base_url=server.url, checks=checks).status_code)

    ask()
    return seen


def whole(value: Any) -> Any:
    """2.0 as 2: to JSON Schema the same number, to this server a fraction."""
    if isinstance(value, list):
        return [whole(item) for item in value]
    if isinstance(value, dict):
        return {name: whole(item) for name, item in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


def is_sure(case: Any) -> bool:
    """Whether a body that fits the schema must be taken: of text, it cannot say that it is a picture, nor of fractions
    that they are grey levels, normalised."""
    image = case.body.get("image") if isinstance(case.body, dict) else None
    return case.media_type != "multipart/form-data" and not isinstance(image, str) and not has_fractions(image)


def has_fractions(value: Any) -> bool:
    return any(map(has_fractions, value)) if isinstance(value, list) else isinstance(value, float)


@schemathesis.check
def what_fits_is_taken(ctx: Any, response: Any, case: Any) -> bool | None:
    return positive_data_acceptance(ctx, response, case) if is_sure(case) else None


@pytest.fixture(scope="module")
def mix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder: Path = tmp_path_factory.mktemp("mix")
    (folder / "model.py").write_text(MODEL, encoding="utf-8")
    spec = parse_spec(SPEC, folder / "spec.yaml")
    packaged = package(spec, folder, progress=Progress(quiet=True))
    with running(spec, mar=folder / packaged.mar, docs=True) as server:
        yield server


def test_what_fits_is_answered_as_described(digits_server: Running) -> None:
    checks = [*CHECKS, what_fits_is_taken]
    seen = fuzz(digits_server, "/predictions/digits", GenerationMode.POSITIVE, checks, examples=60)
    assert 200 in seen


def test_what_does_not_fit_is_refused_as_described(digits_server: Running) -> None:
    checks = [*CHECKS, negative_data_rejection]
    seen = fuzz(digits_server, "/predictions/digits", GenerationMode.NEGATIVE, checks, examples=60)
    assert seen
    assert 200 not in seen


def test_arrays_that_fit_are_answered_as_described(mix: Running) -> None:
    checks = [*CHECKS, positive_data_acceptance]
    seen = fuzz(mix, "/predictions/mix", GenerationMode.POSITIVE, checks, examples=60)
    assert seen == {200}


def test_arrays_that_do_not_fit_are_refused_as_described(mix: Running) -> None:
    checks = [*CHECKS, negative_data_rejection]
    seen = fuzz(mix, "/predictions/mix", GenerationMode.NEGATIVE, checks, examples=60)
    assert seen <= {400, 415, 422}
    assert 422 in seen


def test_the_pages_of_the_protocols_are_as_described(digits_server: Running) -> None:
    paths = [result.ok() for result in described(digits_server).include(method="GET").get_all_operations()]
    assert {operation.path for operation in paths} >= {"/v1/models/digits", "/v2/health/ready", "/v2/models/digits"}
    for operation in paths:
        response = operation.Case().call_and_validate(base_url=digits_server.url, checks=CHECKS)
        assert response.status_code == 200


@pytest.mark.parametrize("path", ["/predictions/mix", "/v1/models/mix:predict", "/v2/models/mix/infer"])
def test_each_protocol_answers_its_example_as_described(path: str, mix: Running) -> None:
    operation = described(mix)[path]["POST"]
    body = operation.definition.raw["requestBody"]["content"]["application/json"]["example"]
    case = operation.Case(body=body, media_type="application/json")
    assert case.call_and_validate(base_url=mix.url, checks=CHECKS).status_code == 200


@pytest.mark.parametrize("path", ["/v1/models/mix:predict", "/v2/models/mix/infer"])
def test_what_the_protocols_describe_is_answered_as_described(path: str, mix: Running) -> None:
    assert fuzz(mix, path, GenerationMode.POSITIVE, CHECKS, examples=20) <= {200, 400, 422}


def test_a_description_that_lies_is_found_out(mix: Running) -> None:
    """What the tests above are worth: the same with one wrong number in the description."""
    with urllib.request.urlopen(f"{mix.url}/openapi.json", timeout=60) as answer:
        text = answer.read().decode()
    schema = schemathesis.openapi.from_dict(json.loads(text.replace('"maximum": 5', '"maximum": 50')))
    operation = schema["/predictions/mix"]["POST"]
    body = {"left": [[0.0] * 3] * 2, "right": [50, 0], "keep": [True, False]}
    response = operation.Case(body=body, media_type="application/json").call(base_url=mix.url)
    assert response.status_code == 422
