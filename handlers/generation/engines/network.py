"""What a folder of Llama's kind says of its network: its shape, its weights, and how far positions turn vectors."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

CONFIG, EMBEDDING = "config.json", "model.embed_tokens.weight"
ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
ROPES = ("default", "linear", "llama3", "yarn")


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
    rope: Mapping[str, Any] = field(default_factory=dict)


def read_shape(folder: Path) -> Shape:
    """The network's shape, or UnknownModel."""
    config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    _check(config, rope)
    heads = config["num_attention_heads"]
    return Shape(
        layers=config["num_hidden_layers"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_size=config.get("head_dim") or config["hidden_size"] // heads,
        norm_eps=config.get("rms_norm_eps", 1e-6),
        rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0),
        tied=bool(config.get("tie_word_embeddings")),
        longest=int(config.get("max_position_embeddings", 2048)),
        rope=rope,
    )


def _check(config: Mapping[str, Any], rope: Mapping[str, Any]) -> None:
    names = config.get("architectures") or ["none"]
    if names[0] not in ARCHITECTURES:
        raise UnknownModel(f"`architectures`: got `{names[0]}`, allowed: {_listed(ARCHITECTURES)}")
    if "auto_map" in config:
        raise UnknownModel("`auto_map`: the model brings code of its own, which is not run")
    if config.get("quantization_config"):
        raise UnknownModel("`quantization_config`: allowed: weights that are not quantised")
    if config.get("hidden_act", "silu") != "silu":
        raise UnknownModel(f"`hidden_act`: got `{config['hidden_act']}`, allowed: `silu`")
    if config.get("mlp_bias"):
        raise UnknownModel("`mlp_bias`: got `true`, allowed: `false`")
    if (kind := _rope_kind(rope)) not in ROPES:
        raise UnknownModel(f"`rope_scaling`: got `{kind}`, allowed: {_listed(ROPES)}")
    if float(rope.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1) != 1:
        raise UnknownModel("`partial_rotary_factor`: allowed: 1")


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _sides(sides: tuple[int, ...]) -> str:
    return " x ".join(map(str, sides))


def embedded(folder: Path) -> int | None:
    """How many tokens the weights of a folder know; None where none are there, or of another kind."""
    for path in folder.glob("*.safetensors"):
        file: Any = safe_open(path, "pt")
        if EMBEDDING in file.keys():  # noqa: SIM118
            return int(file.get_slice(EMBEDDING).get_shape()[0])
    return None


def _rope_kind(rope: Mapping[str, Any]) -> str:
    return str(rope.get("rope_type") or rope.get("type") or "default")


@dataclass(frozen=True)
class Layer:
    """The weights of one layer; `query_key_value` is the three matrices as one, with their bias or none."""

    before_attention: torch.Tensor
    query_key_value: torch.Tensor
    bias: torch.Tensor | None
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    output: torch.Tensor
    before_mlp: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


class Weights:
    """The tensors of a folder, each read when it is asked for, so that no more than one is there twice."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        self.shape = read_shape(folder)
        self._dtype = dtype
        self._files: dict[str, Any] = {}
        for path in sorted(folder.glob("*.safetensors")):
            file: Any = safe_open(path, "pt")
            self._files |= dict.fromkeys(file.keys(), file)
        self.check()

    @property
    def embedding(self) -> torch.Tensor:
        return self._get(EMBEDDING)

    @property
    def head(self) -> torch.Tensor | None:
        """None where it is the embedding."""
        return None if self.shape.tied else self._get("lm_head.weight")

    @property
    def norm(self) -> torch.Tensor:
        return self._get("model.norm.weight")

    def layer(self, index: int) -> Layer:
        prefix = f"model.layers.{index}."
        attention = f"{prefix}self_attn."
        biases = [name for part in "qkv" if (name := f"{attention}{part}_proj.bias") in self._files]
        is_normed = f"{attention}q_norm.weight" in self._files
        return Layer(
            before_attention=self._get(f"{prefix}input_layernorm.weight"),
            query_key_value=torch.cat([self._get(f"{attention}{name}_proj.weight") for name in "qkv"]),
            bias=torch.cat([self._get(name) for name in biases]) if biases else None,
            query_norm=self._get(f"{attention}q_norm.weight") if is_normed else None,
            key_norm=self._get(f"{attention}k_norm.weight") if is_normed else None,
            output=self._get(f"{attention}o_proj.weight"),
            before_mlp=self._get(f"{prefix}post_attention_layernorm.weight"),
            gate_up=torch.cat([self._get(f"{prefix}mlp.{name}_proj.weight") for name in ("gate", "up")]),
            down=self._get(f"{prefix}mlp.down_proj.weight"),
        )

    def check(self) -> None:
        """UnknownModel where the weights are not of the shape that the configuration says: a library that takes them as
        they come would read what is beside them. None of them is read."""
        shape, hidden = self.shape, self.size(EMBEDDING)[1]
        if shape.heads % shape.kv_heads or shape.head_size % 2:
            raise UnknownModel("`num_key_value_heads`, `head_dim`: got heads that cannot be shared, or an odd size")
        self._expect("model.norm.weight", hidden)
        if not shape.tied:
            self._expect("lm_head.weight", self.size(EMBEDDING)[0], hidden)
        for index in range(shape.layers):
            self._check_layer(f"model.layers.{index}.", hidden)

    def _check_layer(self, prefix: str, hidden: int) -> None:
        shape, attention = self.shape, f"{prefix}self_attn."
        if f"{attention}o_proj.bias" in self._files:
            raise UnknownModel("`attention_bias`: the output of the attention has one, which is not computed")
        inner = self.size(f"{prefix}mlp.gate_proj.weight")[0]
        rows = {"q": shape.heads * shape.head_size, "k": shape.kv_heads * shape.head_size}
        rows["v"] = rows["k"]
        biased = [part for part in rows if f"{attention}{part}_proj.bias" in self._files]
        if biased and len(biased) < len(rows):
            raise UnknownModel(f"`attention_bias`: allowed: of all three, got {_listed(tuple(biased))}")
        for part, count in rows.items():
            self._expect(f"{attention}{part}_proj.weight", count, hidden)
            if biased:
                self._expect(f"{attention}{part}_proj.bias", count)
        for part in "qk":
            if f"{attention}q_norm.weight" in self._files:
                self._expect(f"{attention}{part}_norm.weight", shape.head_size)
        self._expect(f"{attention}o_proj.weight", hidden, rows["q"])
        for name in ("gate", "up"):
            self._expect(f"{prefix}mlp.{name}_proj.weight", inner, hidden)
        self._expect(f"{prefix}mlp.down_proj.weight", hidden, inner)
        for name in ("input", "post_attention"):
            self._expect(f"{prefix}{name}_layernorm.weight", hidden)

    def _expect(self, name: str, *wanted: int) -> None:
        if (got := self.size(name)) != wanted:
            raise UnknownModel(f"`{name}`: got {_sides(got)} numbers, by `{CONFIG}` it has {_sides(wanted)}")

    def size(self, name: str) -> tuple[int, ...]:
        """The sides of a tensor, which is not read."""
        return tuple(self._file(name).get_slice(name).get_shape())

    def _file(self, name: str) -> Any:
        if name not in self._files:
            raise UnknownModel(f"the weights have no `{name}`")
        return self._files[name]

    def _get(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._file(name).get_tensor(name)
        return tensor.to(self._dtype)


def check_weights(folder: Path) -> None:
    """UnknownModel where a folder's weights cannot be computed; none of them is read."""
    Weights(folder, torch.float32)


def turns(shape: Shape, context: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of every position, a row each: how far its vectors are turned."""
    size = shape.head_size
    rates = 1.0 / shape.rope_theta ** (torch.arange(0, size, 2, dtype=torch.float32) / size)
    rates, factor = _scaled(rates, shape)
    angles = torch.outer(torch.arange(context, dtype=torch.float32), rates)
    angles = torch.cat((angles, angles), -1)
    return angles.cos() * factor, angles.sin() * factor


def _scaled(rates: torch.Tensor, shape: Shape) -> tuple[torch.Tensor, float]:
    """The rates of a network that was stretched to longer texts, and what its vectors are multiplied by."""
    rope, kind = shape.rope, _rope_kind(shape.rope)
    if kind == "linear":
        return rates / rope["factor"], 1.0
    if kind == "llama3":
        # Waves that the original length holds many times stay, those it does not hold once are stretched.
        waves = rope["original_max_position_embeddings"] * rates / (2 * math.pi)
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        kept = ((waves - low) / (high - low)).clamp(0, 1)
        return rates * kept + rates / rope["factor"] * (1 - kept), 1.0
    if kind == "yarn":
        return _yarn(rates, shape)
    return rates, 1.0


def _yarn(rates: torch.Tensor, shape: Shape) -> tuple[torch.Tensor, float]:
    rope, size, factor = shape.rope, shape.head_size, shape.rope["factor"]
    original = rope.get("original_max_position_embeddings") or shape.longest

    def place(waves: float) -> float:
        return size * math.log(original / (waves * 2 * math.pi)) / (2 * math.log(shape.rope_theta))

    low, high = place(rope.get("beta_fast") or 32), place(rope.get("beta_slow") or 1)
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    stretched = ((torch.arange(size // 2) - low) / max(high - low, 0.001)).clamp(0, 1)
    rates = rates * (1 - stretched) + rates / factor * stretched
    scale, of_all = rope.get("mscale"), rope.get("mscale_all_dim")

    def magnitude(by: float) -> float:
        return 0.1 * by * math.log(factor) + 1.0 if factor > 1 else 1.0

    given = magnitude(scale) / magnitude(of_all) if scale and of_all else magnitude(1)
    return rates, float(rope.get("attention_factor") or given)
