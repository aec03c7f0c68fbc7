"""Shapes of networks that models come in: computed as in `transformers`, or refused by name."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from networks_of_theirs import saved
from safetensors.torch import load_file, save_file
from specs import ROOT

from archiver.native import compile_decoder
from handlers.generation import LIBRARY, Llama, UnknownModel, check_weights
from handlers.generation.engines.compiled import CompiledDecoder

TALES = ROOT / "config/examples/tales/model"
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "a key for every head": ("Llama", {"num_key_value_heads": 4}),
    "one key for all heads": ("Qwen2", {"num_key_value_heads": 1}),
    "heads wider than the rest": ("Llama", {"head_dim": 40}),
    "a window that the text fits in": ("Mistral", {"sliding_window": 57}),
    "no round sizes": ("Qwen3", {"intermediate_size": 33, "hidden_size": 36, "head_dim": 6, "vocab_size": 97}),
    "six heads for three keys": ("Qwen2", {"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 60}),
}


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_that_models_come_in_are_computed_as_in_transformers(shape: str, tmp_path: Path) -> None:
    family, changes = SHAPES[shape]
    theirs = saved(family, tmp_path, **changes)
    compile_decoder("native", tmp_path / LIBRARY)
    tokens = list(range(3, 60))
    with torch.no_grad():
        expected = theirs(torch.tensor([tokens])).logits[0]
    whole = Llama(tmp_path, precision="fp32", slots=1, context=64).read_whole(torch.tensor(tokens))
    torch.testing.assert_close(whole, expected, rtol=1e-4, atol=1e-4)
    rows = range(len(tokens))
    compiled = CompiledDecoder(tmp_path, precision="fp32", slots=1, context=64).step(
        tokens, [0] * len(rows), rows, rows
    )
    torch.testing.assert_close(compiled, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_bias_of_the_attentions_output_is_refused(tmp_path: Path) -> None:
    saved("Llama", tmp_path, attention_bias=True)
    with pytest.raises(UnknownModel, match="`attention_bias`"):
        check_weights(tmp_path)


@pytest.fixture
def tales(tmp_path: Path) -> Path:
    folder: Path = shutil.copytree(TALES, tmp_path / "model")
    return folder


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head_dim": 64}, "q_proj.weight`: got"),
        ({"num_key_value_heads": 1}, "k_proj.weight`: got"),
        ({"num_attention_heads": 2}, "k_proj.weight`: got"),
        ({"num_key_value_heads": 3}, "`num_key_value_heads`"),
        ({"num_hidden_layers": 50}, "the weights have no `model.layers"),
        ({"tie_word_embeddings": False}, "the weights have no `lm_head.weight`"),
    ],
)
def test_weights_of_another_shape_than_their_configuration_says_are_refused(
    change: dict[str, Any], message: str, tales: Path
) -> None:
    config = json.loads((tales / "config.json").read_text())
    (tales / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(UnknownModel, match=message):
        check_weights(tales)


def test_a_bias_of_queries_alone_is_refused(tales: Path) -> None:
    (file,) = tales.glob("*.safetensors")
    weights = load_file(file)
    rows = len(weights["model.layers.0.self_attn.q_proj.weight"])
    save_file(weights | {"model.layers.0.self_attn.q_proj.bias": torch.zeros(rows)}, file)
    with pytest.raises(UnknownModel, match="`attention_bias`: allowed: of all three, got `q`"):
        check_weights(tales)
