"""Networks of many shapes: each is computed as in `transformers`, or refused with the field's name."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from specs import ROOT
from transformers_networks import save_network

from marina.archiver.native import compile_decoder
from marina.handlers.generation.engines.compiled import LIBRARY, CompiledDecoder
from marina.handlers.generation.engines.llama import Llama
from marina.handlers.generation.engines.shape import UnknownModel, read_shape
from marina.handlers.generation.engines.weights import check_weights

TALES = ROOT / "config/examples/tales/model"
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "a key for every head": ("Llama", {"num_key_value_heads": 4}),
    "one key for all heads": ("Qwen2", {"num_key_value_heads": 1}),
    "heads wider than the rest": ("Llama", {"head_dim": 40}),
    "a window that the text fits in": ("Mistral", {"sliding_window": 57}),
    "odd sizes": ("Qwen3", {"intermediate_size": 33, "hidden_size": 36, "head_dim": 6, "vocab_size": 97}),
    "six heads for three keys": ("Qwen2", {"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 60}),
}


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_all_shapes_of_models_are_computed_as_in_transformers(shape: str, tmp_path: Path) -> None:
    family, changes = SHAPES[shape]
    reference = save_network(family, tmp_path, **changes)
    compile_decoder("native", tmp_path / LIBRARY)
    tokens = list(range(3, 60))
    with torch.no_grad():
        expected = reference(torch.tensor([tokens])).logits[0]
    whole = Llama(tmp_path, precision="fp32", slots=1, context=64).read_whole(torch.tensor(tokens))
    torch.testing.assert_close(whole, expected, rtol=1e-4, atol=1e-4)
    rows = range(len(tokens))
    compiled = CompiledDecoder(tmp_path, precision="fp32", slots=1, context=64).step(
        tokens, [0] * len(rows), rows, rows
    )
    torch.testing.assert_close(compiled, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_bias_of_the_attentions_output_is_refused(tmp_path: Path) -> None:
    save_network("Llama", tmp_path, attention_bias=True)
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
        ({"num_hidden_layers": 2}, "`model.layers.2.input_layernorm.weight`: it is in the weights"),
        ({"tie_word_embeddings": False}, "the weights have no `lm_head.weight`"),
        ({"vocab_size": 500}, "embed_tokens.weight`: got 512 x 128 numbers, but `config.json` says 500 x 128"),
        ({"hidden_size": 256, "head_dim": 32}, "says 512 x 256"),
        ({"intermediate_size": 256}, "gate_proj.weight`: got 384 x 128"),
        ({"attention_bias": True}, "the weights have no `model.layers.0.self_attn.q_proj.bias`"),
        ({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}, "have no `model.layers.0.self_attn.q_proj.b"),
        ({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}, "have no `model.layers.0.self_attn.q_norm"),
    ],
)
def test_weights_whose_shape_contradicts_the_configuration_are_refused(
    change: dict[str, Any], message: str, tales: Path
) -> None:
    refuses(tales, change, message)


LLAMA3 = {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_attention_heads": 0}, "`num_attention_heads`: got `0`, allowed: a whole number above 0"),
        ({"num_attention_heads": None}, "`num_attention_heads`: missing"),
        ({"num_hidden_layers": True}, "`num_hidden_layers`: got `true`"),
        ({"num_key_value_heads": 2.0}, "`num_key_value_heads`: got `2.0`"),
        ({"max_position_embeddings": "512"}, "`max_position_embeddings`: got `512`"),
        ({"rms_norm_eps": 0.1}, "`rms_norm_eps`: got `0.1`, allowed: a number from 1e-12 to 0.001"),
        ({"rms_norm_eps": float("nan")}, "`rms_norm_eps`: got `NaN`"),
        ({"rope_theta": 1}, r"`rope_theta`: got `1`, allowed: a number from 100 to 1e\+10"),
        ({"tie_word_embeddings": "yes"}, "`tie_word_embeddings`: got `yes`, allowed: true or false"),
        ({"model_type": "qwen2"}, "`model_type`: got `qwen2`, but `architectures` is `LlamaForCausalLM`"),
        ({"architectures": "Llama"}, "`architectures`: got `Llama`"),
        ({"layer_types": ["linear_attention"]}, "`layer_types`: allowed: `full_attention`"),
        ({"rope_scaling": {"type": "linear"}}, "`rope_scaling.factor`: missing, `linear` needs it"),
        ({"rope_scaling": {"type": "linear", "factor": 0.5}}, "`rope_scaling.factor`: got `0.5`, allowed: a number fr"),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, "`rope_scaling.factor`: got `2`"),
        ({"rope_scaling": {"mrope_section": [1]}}, "`rope_scaling.mrope_section`: `default` does not use it"),
        ({"rope_scaling": YARN | {"short_factor": [1]}}, "`rope_scaling.short_factor`: `yarn` does not use it"),
        ({"rope_scaling": YARN | {"rope_type": "linear"}}, "`rope_scaling.type`: got `yarn`, but `rope_type` is `lin"),
        ({"rope_scaling": YARN | {"beta_fast": 1}}, "`rope_scaling.beta_slow`: allowed: less than `beta_fast`"),
        ({"rope_scaling": YARN | {"original_max_position_embeddings": 1024}}, "got 1024, allowed: at most `max_posi"),
        ({"rope_scaling": LLAMA3}, "`rope_scaling.original_max_position_embeddings`: missing, `llama3` needs it"),
        (
            {"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 64, "low_freq_factor": 4}},
            "`rope_scaling.low_freq_factor`: allowed: less than",
        ),
        ({"rope_parameters": YARN, "rope_scaling": YARN | {"factor": 2.0}}, "`rope_scaling`: differs from `rope_para"),
        ({"rope_parameters": {"rope_theta": 5000.0}}, "`rope_theta`: got `10000`, but `rope_parameters.rope_theta` i"),
        ({"rope_scaling": ["yarn"]}, "`rope_scaling`: allowed: an object"),
    ],
)
def test_a_field_with_a_value_that_no_network_has_is_refused(change: dict[str, Any], message: str, tales: Path) -> None:
    refuses(tales, change, message)


def refuses(folder: Path, change: dict[str, Any], message: str) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(UnknownModel, match=message):
        check_weights(folder)


def add(folder: Path, **tensors: torch.Tensor) -> None:
    """Adds tensors to the folder's file."""
    (file,) = folder.glob("*.safetensors")
    save_file(load_file(file) | tensors, file)


def test_the_original_length_counts_outside_of_the_scaling_too(tales: Path) -> None:
    config = json.loads((tales / "config.json").read_text())
    outside = {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}, "original_max_position_embeddings": 64}
    (tales / "config.json").write_text(json.dumps(config | outside))
    assert read_shape(tales).rope["original_max_position_embeddings"] == 64


def test_rotation_rates_in_an_older_file_are_compared_with_the_configuration(tales: Path) -> None:
    rates = 1 / 10_000 ** (torch.arange(0, 32, 2) / 32)
    add(tales, **{"model.layers.0.self_attn.rotary_emb.inv_freq": rates})
    check_weights(tales)
    refuses(tales, {"rope_theta": 50_000}, "`rope_theta`: got `50000`, but `model.layers.0")


def test_a_second_copy_of_the_embedding_must_be_equal(tales: Path) -> None:
    (file,) = tales.glob("*.safetensors")
    embedding = load_file(file)["model.embed_tokens.weight"]
    add(tales, **{"lm_head.weight": embedding.clone()})
    check_weights(tales)
    add(tales, **{"lm_head.weight": embedding * 2})
    with pytest.raises(UnknownModel, match=r"`tie_word_embeddings`: got `true`, but `lm_head.weight` differs"):
        check_weights(tales)


def test_the_files_are_those_that_transformers_reads(tales: Path) -> None:
    (file,) = tales.glob("*.safetensors")
    save_file({"layers.0.attention.wq.weight": torch.zeros(2)}, tales / "consolidated.safetensors")
    check_weights(tales)
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    weights = load_file(file)
    save_file({name: weights.pop(name) for name in list(weights)[::2]}, tales / first)
    save_file(weights, tales / second)
    file.unlink()
    index = {"weight_map": dict.fromkeys(weights, second) | {"model.norm.weight": first}}
    (tales / "model.safetensors.index.json").write_text(json.dumps(index))
    check_weights(tales)
    (tales / second).write_bytes((tales / second).read_bytes()[:-1])
    with pytest.raises(UnknownModel, match=f"`{second}` cannot be read"):
        check_weights(tales)
    (tales / second).unlink()
    with pytest.raises(UnknownModel, match=f"`{second}`: missing, `model.safetensors.index.json` names it"):
        check_weights(tales)


def test_number_types_that_need_scales_are_refused(tales: Path) -> None:
    add(tales, **{"model.norm.weight": torch.ones(128).to(torch.float8_e4m3fn)})
    with pytest.raises(UnknownModel, match=r"`model.norm.weight`: got `F8_E4M3`, allowed: `BF16`, `F16`, `F32`"):
        check_weights(tales)


def test_a_bias_of_queries_alone_is_refused(tales: Path) -> None:
    (file,) = tales.glob("*.safetensors")
    weights = load_file(file)
    rows = len(weights["model.layers.0.self_attn.q_proj.weight"])
    save_file(weights | {"model.layers.0.self_attn.q_proj.bias": torch.zeros(rows)}, file)
    with pytest.raises(
        UnknownModel, match="`attention_bias`: got only `q`, allowed: biases of `q`, `k` and `v`, or none"
    ):
        check_weights(tales)
