"""Embedders as `sentence-transformers` saves them: a decoder with last-token pooling, a linear layer, prompts."""

import json
import zipfile
from typing import Any

import numpy as np
import pytest
import torch
from fakes import ask, start
from safetensors.torch import save_file

from marina.archiver.package import package
from marina.config.load import parse_spec
from marina.config.progress import Progress
from marina.handlers.encoder import EncoderHandler
from marina.handlers.torchvision_import import prepare_torchvision

SPEC = """
name: tiny
model:
  source: hf:./model
  handler: text
  task: embed
  compile: export
  batch_sizes: [1, 4]
  encoding: {max_tokens: 16, buckets: dynamic, pooling: last}
"""
WORDS = ["[PAD]", "[UNK]", "[END]", "find", "the", "cat", "sat", "on", "a", "mat", ":"]
MADE_BY = "sentence_transformers.models"
TEXTS = ["the cat", "the cat sat on a mat", "mat"]


@pytest.fixture(scope="module")
def handler(tmp_path_factory: pytest.TempPathFactory) -> Any:
    prepare_torchvision()
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import Qwen3Config, Qwen3ForCausalLM

    folder = tmp_path_factory.mktemp("embedder")
    model = folder / "model"
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "head_dim": 8}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64}
    Qwen3ForCausalLM(Qwen3Config(vocab_size=len(WORDS), pad_token_id=0, **sizes, **heads)).save_pretrained(model)
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    end = processors.TemplateProcessing("$A [END]", "$A [END] $B [END]", [("[END]", 2)])
    tokenizer.post_processor = end  # type: ignore[assignment]
    tokenizer.save(str(model / "tokenizer.json"))
    files: dict[str, Any] = {
        "modules.json": [
            {"type": f"{MADE_BY}.{kind}", "path": path}
            for kind, path in (("Transformer", ""), ("Pooling", "1_Pooling"), ("Dense", "2_Dense"), ("Normalize", "3"))
        ],
        "1_Pooling/config.json": {"pooling_mode_lasttoken": True, "include_prompt": True},
        "2_Dense/config.json": {
            "in_features": 16,
            "out_features": 12,
            "bias": True,
            "activation_function": "torch.nn.modules.activation.Tanh",
        },
        "config_sentence_transformers.json": {
            "prompts": {"query": "find : ", "document": ""},
            "default_prompt_name": None,
        },
    }
    for name, content in files.items():
        (model / name).parent.mkdir(exist_ok=True)
        (model / name).write_text(json.dumps(content))
    dense = {"linear.weight": torch.randn(12, 16), "linear.bias": torch.randn(12)}
    save_file(dense, model / "2_Dense/model.safetensors")
    packaged = package(parse_spec(SPEC, folder / "spec.yaml"), folder / "build", progress=Progress(quiet=True))
    with zipfile.ZipFile(folder / "build" / packaged.mar) as archive:
        archive.extractall(folder / "unpacked")
    return start(EncoderHandler(), folder / "unpacked")


def expected(handler: Any, text: str) -> np.ndarray:
    """What `sentence-transformers` computes: the last token's state, the linear layer with tanh, the length 1."""
    from safetensors.torch import load_file
    from tokenizers import Tokenizer
    from transformers import AutoModel

    model = handler.directory.parent / "model"
    ids = Tokenizer.from_file(str(model / "tokenizer.json")).encode(text).ids
    with torch.no_grad():
        state = AutoModel.from_pretrained(model).eval()(input_ids=torch.tensor([ids])).last_hidden_state[0, -1]
    dense = load_file(model / "2_Dense/model.safetensors")
    vector = torch.tanh(dense["linear.weight"] @ state + dense["linear.bias"])
    return torch.nn.functional.normalize(vector, dim=0).numpy()


def embedded(handler: Any, **fields: Any) -> Any:
    body = json.dumps({"model": "tiny", **fields}).encode()
    (reply,) = ask(handler, body, headers={"content-type": "application/json"})
    return reply


def test_the_last_token_of_each_text_is_embedded_whatever_is_beside_it(handler: Any) -> None:
    data = embedded(handler, input=TEXTS).json()["data"]
    for item, text in zip(data, TEXTS, strict=True):
        assert item["embedding"] == pytest.approx(expected(handler, text), abs=1e-5)


def test_a_prompt_that_is_named_is_put_before_the_text(handler: Any) -> None:
    wanted = pytest.approx(expected(handler, "find : the cat"), abs=1e-5)
    assert embedded(handler, input="the cat", prompt_name="query").json()["data"][0]["embedding"] == wanted
    assert embedded(handler, text="the cat", prompt_name="query").json()["embedding"] == wanted
    refused = embedded(handler, input="the cat", prompt_name="questions")
    assert (refused.status, "allowed: query" in refused.json()["error"]["message"]) == (422, True)


def test_an_embedding_may_be_shortened(handler: Any) -> None:
    short = np.array(embedded(handler, input="the cat", dimensions=5).json()["data"][0]["embedding"])
    whole = expected(handler, "the cat")[:5]
    assert short == pytest.approx(whole / np.linalg.norm(whole), abs=1e-5)
    assert embedded(handler, input="the cat", dimensions=13).status == 422
