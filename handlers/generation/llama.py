"""A decoder of Llama's kind in torch: Llama, Mistral and Qwen2, from `config.json` and safetensors.

Keys and values of every slot lie in one block a layer, made once. A step writes into it in place, and reads the part
that is filled."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch.nn.functional import embedding, linear, rms_norm, scaled_dot_product_attention, silu

CONFIG = "config.json"
ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class UnknownModel(Exception):
    """The configuration asks for something that is not computed here; the message says which field."""


@dataclass(frozen=True)
class Shape:
    """What `config.json` says of a network."""

    layers: int
    heads: int
    kv_heads: int
    head_size: int
    norm_eps: float
    rope_theta: float
    tied: bool
    longest: int
    ends: tuple[int, ...]


def read_shape(folder: Path) -> Shape:
    """The network's shape, or UnknownModel."""
    config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    _check(config)
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    heads = config["num_attention_heads"]
    ends = config.get("eos_token_id")
    return Shape(
        layers=config["num_hidden_layers"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_size=config.get("head_dim") or config["hidden_size"] // heads,
        norm_eps=config.get("rms_norm_eps", 1e-6),
        rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0),
        tied=bool(config.get("tie_word_embeddings")),
        longest=_longest(config),
        ends=tuple(ends) if isinstance(ends, list) else () if ends is None else (ends,),
    )


def _check(config: Mapping[str, Any]) -> None:
    allowed = ", ".join(f"`{name}`" for name in ARCHITECTURES)
    names = config.get("architectures") or ["none"]
    if names[0] not in ARCHITECTURES:
        raise UnknownModel(f"`architectures`: got `{names[0]}`, allowed: {allowed}")
    if "auto_map" in config:
        raise UnknownModel("`auto_map`: the model brings code of its own, which is not run")
    if config.get("quantization_config"):
        raise UnknownModel("`quantization_config`: allowed: weights that are not quantised")
    if config.get("hidden_act", "silu") != "silu":
        raise UnknownModel(f"`hidden_act`: got `{config['hidden_act']}`, allowed: `silu`")
    if config.get("mlp_bias"):
        raise UnknownModel("`mlp_bias`: got `true`, allowed: `false`")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind != "default":
        raise UnknownModel(f"`rope_scaling`: got `{kind}`, allowed: `default`")


def _longest(config: Mapping[str, Any]) -> int:
    """The longest text the network was made for; a window of attention is its end here."""
    longest = int(config.get("max_position_embeddings", 2048))
    window = config.get("sliding_window")
    if window and config.get("use_sliding_window", True):
        longest = min(longest, int(window))
    return longest


@dataclass(frozen=True)
class Layer:
    """The weights of one layer; `query_key_value` is the three matrices as one, with their bias or none."""

    before_attention: torch.Tensor
    query_key_value: torch.Tensor
    bias: torch.Tensor | None
    output: torch.Tensor
    before_mlp: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


class Llama:
    """The network with room for `slots` sequences of `context` tokens."""

    def __init__(self, folder: Path, *, precision: str, slots: int, context: int) -> None:
        self.shape = shape = read_shape(folder)
        self._dtype = DTYPES[precision]
        weights = _read_weights(folder, self._dtype)
        self._embedding = weights["model.embed_tokens.weight"]
        self._norm = weights["model.norm.weight"]
        self._head = self._embedding if shape.tied else weights["lm_head.weight"]
        self._layers = [_layer(weights, f"model.layers.{index}.") for index in range(shape.layers)]
        places = (slots, shape.kv_heads, context, shape.head_size)
        self._keys = [torch.zeros(places, dtype=self._dtype) for _ in self._layers]
        self._values = [torch.zeros(places, dtype=self._dtype) for _ in self._layers]
        self._turns = _turns(context, shape.head_size, shape.rope_theta)
        self._steps = torch.arange(context)

    @property
    def vocabulary(self) -> int:
        return int(self._head.shape[0])

    @torch.inference_mode()
    def read(self, slot: int, start: int, tokens: torch.Tensor) -> torch.Tensor:
        """Computes a piece of a prompt into a slot; the scores after its last token."""
        return self._scores(self._read(slot, start, tokens)[-1:])[0]

    @torch.inference_mode()
    def read_whole(self, tokens: torch.Tensor) -> torch.Tensor:
        """The scores after every token of a text, a row each; what was in the first slot is lost."""
        return self._scores(self._read(0, 0, tokens))

    def _read(self, slot: int, start: int, tokens: torch.Tensor) -> torch.Tensor:
        end = start + len(tokens)
        mask = self._steps[:end] <= self._steps[start:end, None]
        hidden = embedding(tokens, self._embedding)
        for index, layer in enumerate(self._layers):
            query, key, value = self._project(layer, hidden, self._steps[start:end])
            self._keys[index][slot, :, start:end] = key.transpose(0, 1)
            self._values[index][slot, :, start:end] = value.transpose(0, 1)
            attended = scaled_dot_product_attention(
                query.transpose(0, 1)[None],
                self._keys[index][slot : slot + 1, :, :end],
                self._values[index][slot : slot + 1, :, :end],
                attn_mask=mask,
                enable_gqa=True,
            )
            hidden = self._finish(layer, hidden, attended[0].transpose(0, 1))
        return hidden

    @torch.inference_mode()
    def decode(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """One token of each of the first slots, at its position; the scores after them, a row a slot."""
        rows, end = torch.arange(len(tokens)), int(positions.max()) + 1
        mask = (self._steps[:end] <= positions[:, None])[:, None, None]
        hidden = embedding(tokens, self._embedding)
        for index, layer in enumerate(self._layers):
            query, key, value = self._project(layer, hidden, positions)
            self._keys[index][rows, :, positions] = key
            self._values[index][rows, :, positions] = value
            attended = scaled_dot_product_attention(
                query[:, :, None],
                self._keys[index][: len(tokens), :, :end],
                self._values[index][: len(tokens), :, :end],
                attn_mask=mask,
                enable_gqa=True,
            )
            hidden = self._finish(layer, hidden, attended[:, :, 0])
        return self._scores(hidden)

    def _project(
        self, layer: Layer, hidden: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values of some tokens, turned by their positions: (tokens, heads, head_size)."""
        shape = self.shape
        normed = rms_norm(hidden, hidden.shape[-1:], layer.before_attention, shape.norm_eps)
        mixed = linear(normed, layer.query_key_value, layer.bias).view(len(hidden), -1, shape.head_size)
        query, key, value = torch.split(mixed, [shape.heads, shape.kv_heads, shape.kv_heads], 1)
        return self._turn(query, positions), self._turn(key, positions), value

    def _turn(self, vectors: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        cosine, sine = (table[positions, None].to(vectors.dtype) for table in self._turns)
        left, right = vectors.chunk(2, -1)
        return vectors * cosine + torch.cat((-right, left), -1) * sine

    def _finish(self, layer: Layer, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        hidden = hidden + linear(attended.flatten(1), layer.output)
        normed = rms_norm(hidden, hidden.shape[-1:], layer.before_mlp, self.shape.norm_eps)
        gate, up = linear(normed, layer.gate_up).chunk(2, -1)
        return hidden + linear(silu(gate) * up, layer.down)

    def _scores(self, hidden: torch.Tensor) -> torch.Tensor:
        normed = rms_norm(hidden, hidden.shape[-1:], self._norm, self.shape.norm_eps)
        return linear(normed, self._head).float()


def _read_weights(folder: Path, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        weights |= {name: tensor.to(dtype) for name, tensor in load_file(file).items()}
    return weights


def _layer(weights: Mapping[str, torch.Tensor], prefix: str) -> Layer:
    attention = f"{prefix}self_attn."
    biases = [weights.get(f"{attention}{name}_proj.bias") for name in "qkv"]
    if f"{attention}o_proj.bias" in weights:
        raise UnknownModel("`attention_bias`: the output of the attention has one, which is not computed")
    return Layer(
        before_attention=weights[f"{prefix}input_layernorm.weight"],
        query_key_value=torch.cat([weights[f"{attention}{name}_proj.weight"] for name in "qkv"]),
        bias=torch.cat([bias for bias in biases if bias is not None]) if biases[0] is not None else None,
        output=weights[f"{attention}o_proj.weight"],
        before_mlp=weights[f"{prefix}post_attention_layernorm.weight"],
        gate_up=torch.cat([weights[f"{prefix}mlp.{name}_proj.weight"] for name in ("gate", "up")]),
        down=weights[f"{prefix}mlp.down_proj.weight"],
    )


def _turns(context: int, size: int, theta: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of every position, a row each: how far its vectors are turned."""
    rates = 1.0 / theta ** (torch.arange(0, size, 2, dtype=torch.float32) / size)
    angles = torch.outer(torch.arange(context, dtype=torch.float32), rates)
    angles = torch.cat((angles, angles), -1)
    return angles.cos(), angles.sin()
