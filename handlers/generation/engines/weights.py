"""The weights of a network of Llama's kind, checked against its configuration, and its table of rotary positions."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from marina.handlers.generation.engines.shape import (
    CONFIG,
    OtherFamily,
    Shape,
    UnknownModel,
    quote_all,
    read_shape,
    rope_kind,
)

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
_SINGLE_FILE, _INDEX = "model.safetensors", "model.safetensors.index.json"
# The number types that need no scales, by their names in safetensors.
_DTYPES = ("BF16", "F16", "F32")
# Older files also have the rotation rates of each layer, which follow from `rope_theta`.
_RATES = ".rotary_emb.inv_freq"


def _sides(sides: tuple[int, ...]) -> str:
    return " x ".join(map(str, sides))


def weight_files(folder: Path) -> list[Path]:
    """The files that `transformers` would read; the folder may have the weights again in another form."""
    if (folder / _SINGLE_FILE).is_file():
        return [folder / _SINGLE_FILE]
    if not (folder / _INDEX).is_file():
        return sorted(folder.glob("*.safetensors"))
    index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
    named = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(named, dict) or not all(isinstance(name, str) for name in named.values()):
        raise UnknownModel(f"`{_INDEX}` has no `weight_map` of files")
    return sorted({folder / Path(name).name for name in named.values()})


def _open(file: Path) -> Any:
    if not file.is_file():
        raise UnknownModel(f"`{file.name}`: missing, `{_INDEX}` names it")
    try:
        return safe_open(file, "pt")
    except (OSError, SafetensorError) as err:
        raise UnknownModel(f"`{file.name}` cannot be read: {err}") from err


def vocabulary_size(folder: Path) -> int | None:
    """How many tokens the embedding of a folder's weights has; None without weights, or if they are of another kind."""
    for file in map(_open, filter(Path.is_file, weight_files(folder))):
        if EMBEDDING in file.keys():  # noqa: SIM118
            return int(file.get_slice(EMBEDDING).get_shape()[0])
    return None


@dataclass(frozen=True)
class LayerWeights:
    """The weights of one layer. `query_key_value` is the three matrices in one; `bias` is theirs, None without."""

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
    """The tensors of a folder. Each is read when it is asked for, so that at most one is in memory twice."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        self.shape = read_shape(folder)
        self._dtype = dtype
        self._files: dict[str, Any] = {}
        self._expected: set[str] = set()
        for path in weight_files(folder):
            file = _open(path)
            if twice := sorted(self._files.keys() & file.keys()):
                raise UnknownModel(f"`{twice[0]}` is in `{path.name}` and in another file")
            self._files |= dict.fromkeys(file.keys(), file)
        self._check()

    @property
    def embedding(self) -> torch.Tensor:
        return self._get(EMBEDDING)

    @property
    def head(self) -> torch.Tensor | None:
        """The output matrix; None if it is the embedding."""
        return None if self.shape.tied else self._get(HEAD)

    @property
    def norm(self) -> torch.Tensor:
        return self._get("model.norm.weight")

    def layer(self, index: int) -> LayerWeights:
        prefix = f"model.layers.{index}."
        attention = f"{prefix}self_attn."
        biases = [f"{attention}{part}_proj.bias" for part in "qkv"] if self.shape.biased else []
        is_normed = self.shape.normed
        return LayerWeights(
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

    def _check(self) -> None:
        """Raises UnknownModel if the shape of a tensor is not as the configuration says: the compiled library does not
        check it, and would read beyond the end. No tensor is read for this."""
        shape, (vocabulary, hidden) = self.shape, self._size(EMBEDDING)
        if shape.heads % shape.kv_heads or shape.head_size % 2:
            raise UnknownModel("`num_attention_heads` is not a multiple of `num_key_value_heads`, or `head_dim` is odd")
        self._expect(EMBEDDING, shape.vocabulary or vocabulary, shape.hidden or hidden)
        self._expect("model.norm.weight", hidden)
        if not shape.tied:
            self._expect(HEAD, vocabulary, hidden)
        for index in range(shape.layers):
            self._check_layer(f"model.layers.{index}.", hidden)
        self._check_rest()

    def check_copies(self) -> None:
        """Raises UnknownModel if the output matrix is a second copy of the embedding and differs. Reads both."""
        if self.shape.tied and HEAD in self._files and not torch.equal(self._get(HEAD), self.embedding):
            raise UnknownModel(f"`tie_word_embeddings`: got `true`, but `{HEAD}` differs from `{EMBEDDING}`")

    def _check_layer(self, prefix: str, hidden: int) -> None:
        shape, attention = self.shape, f"{prefix}self_attn."
        if f"{attention}o_proj.bias" in self._files:
            raise OtherFamily("`attention_bias`: the attention's output has a bias, which Marina does not compute")
        inner = shape.inner or self._size(f"{prefix}mlp.gate_proj.weight")[0]
        rows = {"q": shape.heads * shape.head_size, "k": shape.kv_heads * shape.head_size}
        rows["v"] = rows["k"]
        biased = [part for part in rows if f"{attention}{part}_proj.bias" in self._files]
        if biased and len(biased) < len(rows):
            raise UnknownModel(
                f"`attention_bias`: got only {quote_all(biased)}, allowed: biases of `q`, `k` and `v`, or none"
            )
        for part, count in rows.items():
            self._expect(f"{attention}{part}_proj.weight", count, hidden)
            if shape.biased:
                self._expect(f"{attention}{part}_proj.bias", count)
        for part in "qk" if shape.normed else "":
            self._expect(f"{attention}{part}_norm.weight", shape.head_size)
        self._expect(f"{attention}o_proj.weight", hidden, rows["q"])
        for name in ("gate", "up"):
            self._expect(f"{prefix}mlp.{name}_proj.weight", inner, hidden)
        self._expect(f"{prefix}mlp.down_proj.weight", hidden, inner)
        for name in ("input", "post_attention"):
            self._expect(f"{prefix}{name}_layernorm.weight", hidden)

    def _check_rest(self) -> None:
        """Refuses tensors that a network with this configuration does not use: it is the configuration of another."""
        rest = self._files.keys() - self._expected - ({HEAD} if self.shape.tied else set())
        for name in sorted(rest):
            if not name.endswith(_RATES):
                raise UnknownModel(f"`{name}`: it is in the weights, but a model with this `{CONFIG}` does not use it")
            rates, theirs = _rates(self.shape), self._file(name).get_tensor(name).float()
            if rates.shape != theirs.shape or not torch.allclose(rates, theirs, rtol=0.01):
                raise UnknownModel(
                    f"`rope_theta`: got `{self.shape.rope_theta:g}`, but `{name}` was made with another value"
                )

    def _expect(self, name: str, *wanted: int) -> None:
        if (got := self._size(name)) != wanted:
            raise UnknownModel(f"`{name}`: got {_sides(got)} numbers, but `{CONFIG}` says {_sides(wanted)}")
        if (kind := self._file(name).get_slice(name).get_dtype()) not in _DTYPES:
            raise UnknownModel(f"`{name}`: got `{kind}`, allowed: {quote_all(_DTYPES)}")
        self._expected.add(name)

    def _size(self, name: str) -> tuple[int, ...]:
        """The sides of a tensor, without reading it."""
        return tuple(self._file(name).get_slice(name).get_shape())

    def _file(self, name: str) -> Any:
        if name not in self._files:
            raise UnknownModel(f"the weights have no `{name}`")
        return self._files[name]

    def _get(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._file(name).get_tensor(name)
        return tensor.to(self._dtype)


def check_weights(folder: Path) -> None:
    """Raises UnknownModel if a folder's weights are not supported, or not as its configuration describes them."""
    Weights(folder, torch.float32).check_copies()


def _rates(shape: Shape) -> torch.Tensor:
    """The angle by which one position turns each pair of numbers of a vector."""
    return 1.0 / shape.rope_theta ** (torch.arange(0, shape.head_size, 2, dtype=torch.float32) / shape.head_size)


def rotary_tables(shape: Shape, context: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of the angles by which vectors are turned, a row for each position."""
    rates, factor = _scaled(_rates(shape), shape)
    angles = torch.outer(torch.arange(context, dtype=torch.float32), rates)
    angles = torch.cat((angles, angles), -1)
    return angles.cos() * factor, angles.sin() * factor


def _scaled(rates: torch.Tensor, shape: Shape) -> tuple[torch.Tensor, float]:
    """The rates, scaled for longer texts as the configuration says, and the factor for cosines and sines."""
    rope, kind = shape.rope, rope_kind(shape.rope)
    if kind == "linear":
        return rates / rope["factor"], 1.0
    if kind == "llama3":
        # Waves that fit into the original length many times stay; those that do not fit in once are stretched.
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
