"""What clients send to encoders: how much of it is read, and as what. The tokenizer is real, the models are tiny."""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import torch
from fakes import EAGER, ask, rewrite, start
from specs import ROOT

from marina.handlers import encoder
from marina.handlers.encoder import EncoderHandler
from marina.handlers.protocols import HEADER

JSON = {"content-type": "application/json"}
LONGEST = 64


class TinyTagger(torch.nn.Module):
    def forward(self, input_ids: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.stack([input_ids % 7, input_ids % 5], -1).float(),)


class TinySumOfTokens(torch.nn.Module):
    def forward(self, input_ids: torch.Tensor) -> tuple[torch.Tensor]:
        return (input_ids.sum(-1).float(),)


class TinyEmbedder(torch.nn.Module):
    def forward(self, input_ids: torch.Tensor) -> tuple[torch.Tensor]:
        return (input_ids.sum(-1, keepdim=True).float(),)


def encoder_for(
    task: str, model: torch.nn.Module, output: dict[str, Any], folder: Path, highest: int | None = None
) -> Any:
    shutil.copy(ROOT / "config/examples/language/model/tokenizer.json", folder)
    dimensions = {0: torch.export.Dim("batch", min=1, max=64), 1: torch.export.Dim("length", min=1, max=LONGEST)}
    example = torch.ones(2, 5, dtype=torch.int64)
    program, saved = torch.export.export(model, (example,), dynamic_shapes=(dimensions,)), io.BytesIO()
    torch.export.save(program, saved)
    (folder / "program.pt2").write_bytes(rewrite(saved.getvalue(), {"data/sample_inputs/model.pt": b""}))
    record = EAGER | {
        "handler": "text",
        "inputs": [{"name": "input_ids", "shape": [LONGEST], "dtype": "int64", "varies": 0, "max": highest}],
        "outputs": [output],
        "encoding": {"task": task, "max_tokens": LONGEST, "truncate": "right", "tokenizer": "tokenizer.json"},
        "lengths": {"buckets": [8, LONGEST], "dynamic": True},
    }
    (folder / "marina.json").write_text(json.dumps(record))
    return start(EncoderHandler(), folder)


@pytest.fixture(scope="module")
def tagger(tmp_path_factory):
    output = {"name": "probabilities", "shape": [LONGEST, 2], "dtype": "float32", "varies": 0}
    return encoder_for("tokens", TinyTagger(), output, tmp_path_factory.mktemp("tokens"))


@pytest.fixture(scope="module")
def reranker(tmp_path_factory):
    output = {"name": "score", "shape": [], "dtype": "float32"}
    return encoder_for("rerank", TinySumOfTokens(), output, tmp_path_factory.mktemp("rerank"))


@pytest.mark.parametrize("kind", ["application/vnd.api+json", "text/json", "application/json; charset=utf-8"])
def test_json_of_every_name_is_read_as_json(tagger, kind):
    body = b'{"text": "good morning"}'
    (expected,), (reply,) = ask(tagger, body, headers=JSON), ask(tagger, body, headers={"content-type": kind})
    assert (reply.status, reply.body) == (200, expected.body)


def test_what_is_neither_json_nor_text_is_not_read_as_text(tagger):
    plain, picture = (ask(tagger, b"good morning", headers={"content-type": kind}) for kind in ("text/x", "image/png"))
    assert (plain[0].status, picture[0].status) == (200, 400)


def test_all_texts_of_a_request_together_have_a_limit(reranker, monkeypatch):
    monkeypatch.setattr(encoder, "MAX_ALL_CHARACTERS", 1000)
    bodies = [{"query": "x" * length, "documents": ["y"] * 10} for length in (99, 100)]
    below, above = ask(reranker, *map(orjson.dumps, bodies), headers=JSON)
    assert (below.status, above.status) == (200, 413)
    assert above.json() == {
        "error": "all texts together are too long",
        "field": "text",
        "got": "1010 characters",
        "allowed": "at most 1000",
    }


def test_tokens_have_their_places_although_a_text_is_cut_off(tagger):
    text = "good morning " * 100
    (reply,) = ask(tagger, orjson.dumps(text), headers=JSON)
    tokens = reply.json()["tokens"]
    assert "".join(text[token["start"] : token["end"]] for token in tokens) == text[: tokens[-1]["end"]]
    assert 10 < len(tokens) < LONGEST


def test_texts_whose_outputs_make_no_tensor_are_told_so(tagger):
    data = {"name": "text", "shape": [2], "datatype": "BYTES"}
    equal, unequal = (
        ask(tagger, orjson.dumps({"inputs": [data | {"data": texts}]}), headers=JSON | {HEADER: "v2"})[0]
        for texts in (["good", "good"], ["good", "good morning to you"])
    )
    assert (equal.status, unequal.status) == (200, 422)
    assert unequal.json()["error"].startswith("the outputs of these rows differ in length in `probabilities`")


def test_openais_clients_get_errors_in_their_form(tmp_path):
    handler = encoder_for("embed", TinyEmbedder(), {"name": "embedding", "shape": [1], "dtype": "float32"}, tmp_path)
    (reply,) = ask(handler, b'{"input": [1, 2]}', headers=JSON)
    sentence = 'a text is needed in `input`: got a list of 2, allowed: {"input": "..."}, or a list of texts'
    error = {"message": sentence, "type": "invalid_request_error", "param": "input", "code": None}
    assert (reply.status, reply.json()) == (422, {"error": error})
    (long,) = ask(handler, orjson.dumps({"input": "x" * (encoder.MAX_CHARACTERS + 1)}), headers=JSON)
    assert (long.status, long.json()["error"]["param"]) == (413, "input")


def test_a_ranking_is_cut_to_its_best_documents(reranker):
    body = {"query": "good", "documents": ["morning", "good", "to", "you"]}
    all_of_them, best, more = (
        ask(reranker, orjson.dumps(body | more), headers=JSON)[0].json()["results"]
        for more in ({}, {"top_n": 2, "model": "any"}, {"top_n": 9, "return_documents": None})
    )
    assert (len(all_of_them), best, more) == (4, all_of_them[:2], all_of_them)


@pytest.mark.parametrize("more", [{"top_n": 0}, {"top_n": True}, {"top_n": "2"}, {"return_documents": True}])
def test_what_a_ranking_cannot_do_is_refused_by_name(reranker, more):
    (reply,) = ask(reranker, orjson.dumps({"query": "good", "documents": ["good"]} | more), headers=JSON)
    assert (reply.status, reply.json()["field"]) == (422, next(iter(more)))


def test_fields_of_embeddings_that_are_not_supported_are_refused_by_name(tmp_path):
    handler = encoder_for("embed", TinyEmbedder(), {"name": "embedding", "shape": [1], "dtype": "float32"}, tmp_path)
    body = {"input": "good", "model": "any", "user": "me"}
    (refused,) = ask(handler, orjson.dumps(body | {"input_type": "query"}), headers=JSON)
    assert (refused.status, refused.json()["error"]["param"]) == (422, "input_type")
    (unset,) = ask(handler, orjson.dumps(body | {"encoding_format": None, "dimensions": None}), headers=JSON)
    assert unset.status == 200


def test_a_field_beside_a_text_is_ignored_or_refused_by_name(tagger):
    bodies = [{"text": "good"} | more for more in ({}, {"model": "any", "user": None}, {"top_n": 3})]
    plain, known, refused = ask(tagger, *map(orjson.dumps, bodies), headers=JSON)
    assert (known.status, known.body) == (200, plain.body)
    assert (refused.status, refused.json()["error"], refused.json()["field"]) == (
        422,
        "the field is not supported",
        "top_n",
    )


def test_a_token_that_the_weights_do_not_have_is_refused(tmp_path):
    output = {"name": "embedding", "shape": [1], "dtype": "float32"}
    handler = encoder_for("embed", TinyEmbedder(), output, tmp_path, highest=300)
    known, unknown = ask(handler, b'"a"', b'"harbour"', headers=JSON)
    assert (known.status, unknown.status) == (200, 422)
    assert unknown.json()["error"] == "the text has a token that the model does not know"
    assert unknown.json()["allowed"] == "up to 300"


@pytest.mark.parametrize(
    ("words", "start", "end", "answer"),
    [
        pytest.param(30, 3, 5, range(3, 6), id="3 words"),
        pytest.param(30, 5, 3, (3,), id="an end before its start"),
        pytest.param(30, 3, 18, (18,), id="16 words"),
        pytest.param(30, 3, 17, range(3, 18), id="15 words"),
    ],
)
def test_an_answer_has_an_order_and_a_longest_length(words, start, end, answer):
    starts, ends = np.zeros(words + 2), np.zeros(words + 2)
    # The question, which may not be its own answer, and then the context.
    starts[0] = ends[0] = 90
    starts[end + 2], starts[start + 2], ends[end + 2] = 1, 8, 9
    context = " ".join(f"w{at:02}" for at in range(words))
    places = [None, None, *((4 * at, 4 * at + 3) for at in range(words))]
    best = encoder._best_answer(starts, ends, places, context)
    assert best["answer"] == " ".join(f"w{at:02}" for at in answer)
    assert context[best["start"] : best["end"]] == best["answer"]
