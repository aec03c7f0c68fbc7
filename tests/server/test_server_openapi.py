"""The OpenAPI description alone: that it is valid, and that its examples match its schemas. The e2e tests check it
against a running server."""

from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from schemathesis.specs.openapi.definitions import OPENAPI_31_VALIDATOR

from marina.config.record import (
    Agreement,
    BodyFormat,
    EncoderSetup,
    MachineKey,
    PackedImage,
    Port,
    Record,
    Sample,
    Writing,
)
from marina.config.render import Ports
from marina.handlers.protocols.v2 import NAMES
from marina.server.pages import door_pages
from marina.server.pages.openapi import openapi
from marina.server.pages.schemas import DATATYPES, model_metadata
from marina.server.pages.snippets import programs

SERVER = "http://127.0.0.1:8080"
X = Port(name="x", shape=(2, 3), dtype="float32", min=1)
IDS = Port(name="ids", shape=(8,), dtype="int64", min=0, max=99, varies=0)
COLUMNS = Port(name="kinds", shape=(2, 3), dtype="int64", columns=((None, None), (1, 9), (-8, -2)))
KEEP = Port(name="keep", shape=(2,), dtype="bool")
TOP = (Port(name="top_probs", shape=(5,), dtype="float32"), Port(name="top_indices", shape=(5,), dtype="int64"))
PIXELS = Port(name="image", shape=(8, 8, 3), dtype="uint8")
WRITING = Writing(
    folder="model",
    engine="fake",
    context=64,
    slots=1,
    waiting=1,
    prefill_chunk=8,
    max_tokens=8,
    flush_ms=20,
    step_ms=1,
    speculation="off",
    ends=(0,),
)
TAKES = BodyFormat(content_type="application/json", json_schema={"required": ["a"]}, example={"a": 1})
PNG, BYTES = (BodyFormat(content_type=kind, json_schema={}) for kind in ("image/png", "application/octet-stream"))
KINDS: dict[str, dict[str, Any]] = {
    "tensor": {"handler": "tensor", "inputs": (X, KEEP), "outputs": (X,)},
    "types": {
        "handler": "tensor",
        "inputs": tuple(Port(name=dtype, shape=(2,), dtype=dtype) for dtype in (*DATATYPES, "bfloat16")),
        "outputs": tuple(Port(name=dtype, shape=(2,), dtype=dtype) for dtype in (*DATATYPES, "bfloat16")),
    },
    "lengths": {"handler": "tensor", "inputs": (IDS,), "outputs": (IDS,)},
    "columns": {"handler": "tensor", "inputs": (COLUMNS, X), "outputs": (X,)},
    "image": {"handler": "image", "inputs": (PIXELS,), "outputs": TOP, "image": PackedImage(height=8, width=8)},
    "writes": {"handler": "text", "text": WRITING},
    "own": {"handler": "mine:Mine", "inputs": (X,), "outputs": (X,)},
    "declared": {"handler": "mine:Mine", "inputs": (X,), "outputs": (X,), "takes": TAKES, "gives": TAKES},
    "bytes": {"handler": "mine:Mine", "inputs": (X,), "outputs": (X,), "gives": BYTES},
    "mask": {"handler": "mine:Mine", "inputs": (X,), "outputs": (X,), "gives": PNG},
} | {
    task: {
        "handler": "text",
        "inputs": (IDS,),
        "outputs": (X,),
        "encoding": EncoderSetup(task=task, max_tokens=8, truncate="error", tokenizer="tokenizer.json"),  # type: ignore[arg-type]
    }
    for task in ("answer", "embed", "rerank")
}


def record_of(kind: str) -> Record:
    agreed = Agreement(
        inputs="generated", count=1, measure="tolerance", agreement=1.0, max_abs_difference=0.0, cosine=1.0
    )
    fields: dict[str, Any] = {
        "name": "shells",
        "version": "1.0",
        "source": "./model.py:build",
        "precision": "fp32",
        "compile": "export",
        "device": "cpu",
        "workers": 1,
        "threads": 1,
        "max_request_bytes": 1000,
        "max_response_bytes": 1000,
        "sample": Sample(file="sample.json", content_type="application/json"),
        "key": MachineKey(torch="none", device="cpu"),
        "agreement": agreed,
        "files": {},
    }
    return Record(**fields | KINDS[kind])


def described(kind: str) -> dict[str, Any]:
    return openapi(record_of(kind))


def media(value: Any) -> Iterator[dict[str, Any]]:
    """Every content type in a description that has an example."""
    if isinstance(value, dict):
        if {"schema", "example"} <= value.keys():
            yield value
        for each in value.values():
            yield from media(each)


@pytest.mark.parametrize("kind", KINDS)
def test_the_description_is_openapi_and_its_examples_fit(kind: str) -> None:
    description = described(kind)
    assert [str(error) for error in OPENAPI_31_VALIDATOR.iter_errors(description)] == []
    for each in media(description["paths"]):
        Draft202012Validator(each["schema"]).validate(each["example"])


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"bytes", "mask", "own", "writes"}))
def test_every_way_to_ask_has_an_example(kind: str) -> None:
    paths = described(kind)["paths"]
    asked = ["/predictions/shells", "/v1/models/shells:predict", "/v2/models/shells/infer"]
    bodies = [paths[path]["post"]["requestBody"]["content"] for path in asked]
    assert [any("example" in each for each in body.values()) for body in bodies] == [True, True, True]


def test_v2_names_every_type_that_a_model_may_have() -> None:
    record = record_of("types")
    odd = Port(name="spectrum", shape=(2,), dtype="complex64")
    described_outputs = model_metadata(record.model_copy(update={"outputs": (*record.outputs, odd)}))["outputs"]
    types = {each["name"]: each["datatype"] for each in described_outputs}
    assert types == NAMES | {"bfloat16": "FP32", "spectrum": "COMPLEX64"}


def test_what_an_own_handler_declares_is_all_that_is_said_of_it() -> None:
    asked = described("declared")["paths"]["/predictions/shells"]["post"]
    assert list(asked["requestBody"]["content"]) == ["application/json"]
    assert asked["requestBody"]["content"]["application/json"]["example"] == {"a": 1}
    assert asked["responses"]["200"]["content"]["application/json"]["schema"]["required"] == ["a"]
    assert "*/*" in described("own")["paths"]["/predictions/shells"]["post"]["requestBody"]["content"]


def test_the_page_shows_what_an_own_handler_declares() -> None:
    def page(kind: str) -> str:
        pages = door_pages(record_of(kind), b"{}", ports=Ports(8080), sha256="-", docs=True)
        return str(pages["/docs"]["body"])

    assert "<h3>Takes <code>application/json</code></h3>" in page("declared")
    assert "&#34;a&#34;: 1" in page("declared")
    assert "<h3>Takes" not in page("own")


def test_without_docs_there_is_no_such_page() -> None:
    with_docs, without = (
        door_pages(record_of("tensor"), b"{}", ports=Ports(8080), sha256="-", docs=docs) for docs in (True, False)
    )
    assert with_docs.keys() - without.keys() == {"/docs", "/docs/sample", "/openapi.json"}
    assert 'href="/docs"' in with_docs["/"]["body"]
    assert "docs</code> adds a page" in without["/"]["body"]


@pytest.mark.parametrize("kind", ["embed", "writes"])
def test_openais_clients_are_shown_where_they_are_answered(kind: str) -> None:
    shown = programs(record_of(kind), server=SERVER)
    assert f'base_url="{SERVER}/v1"' in shown["openai"][1]
    assert f'baseURL: "{SERVER}/v1"' in shown["openai-js"][1]
    assert "openai" not in programs(record_of("rerank"), server=SERVER)


def test_a_picture_that_is_answered_is_written_to_a_file() -> None:
    shown, of_bytes, of_text = (programs(record_of(kind), server=SERVER) for kind in ("mask", "bytes", "declared"))
    for name in ("curl", "python", "requests", "javascript"):
        assert "answer.png" in shown[name][1], name
        assert "answer.bin" in of_bytes[name][1], name
        assert "answer.json" not in of_text[name][1], name
