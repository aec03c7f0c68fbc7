"""Reads the shape of a network of Llama's kind from `config.json`.

A field is refused if Marina does not compute it, or if no such network has its value. The weights show further mistakes
(`weights.py`), and the rest only show in texts."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

CONFIG = "config.json"
# The class in `transformers`, and the `model_type` of its configuration.
_FAMILIES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
_WINDOWS = ("full_attention", "sliding_attention")
_LARGEST = 2**31


class UnknownModel(Exception):
    """The folder needs something that Marina does not compute; the message names the field or tensor."""


class OtherFamily(UnknownModel):
    """The model is of a kind that Marina does not compute, but vLLM may."""


@dataclass(frozen=True)
class Shape:
    """A network as `config.json` describes it. With `biased` its queries, keys and values have a bias; with `normed`
    its queries and keys are normalised. `vocabulary`, `hidden` and `inner` may be None: then the weights decide."""

    layers: int
    heads: int
    kv_heads: int
    head_size: int
    norm_eps: float
    rope_theta: float
    tied: bool
    longest: int
    biased: bool = False
    normed: bool = False
    vocabulary: int | None = None
    hidden: int | None = None
    inner: int | None = None
    rope: Mapping[str, Any] = field(default_factory=dict)


def quote_all(names: Sequence[object]) -> str:
    """The names in backticks, as they are written in JSON."""
    return ", ".join(f"`{name if isinstance(name, str) else json.dumps(name)}`" for name in names)


class _Allowed(NamedTuple):
    text: str
    holds: Callable[[Any], bool]


def _numbers(low: float, high: float) -> _Allowed:
    def holds(value: Any) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high

    return _Allowed(f"a number from {low:g} to {high:g}", holds)


def _among(values: Sequence[object]) -> _Allowed:
    return _Allowed(
        quote_all(values), lambda value: any(type(value) is type(allowed) and value == allowed for allowed in values)
    )


_COUNT = _Allowed("a whole number above 0", lambda value: type(value) is int and 0 < value < _LARGEST)
_FLAG = _Allowed("true or false", lambda value: isinstance(value, bool))
_TEXT = _Allowed("a text", lambda value: isinstance(value, str))
# `rms_norm_eps` is 1e-6 or 1e-5 in these families, `rope_theta` 10,000 up to some ten millions.
_FIELDS: dict[str, _Allowed] = {
    **dict.fromkeys(("num_attention_heads", "num_hidden_layers", "num_key_value_heads", "head_dim"), _COUNT),
    **dict.fromkeys(("hidden_size", "intermediate_size", "vocab_size", "max_position_embeddings"), _COUNT),
    **dict.fromkeys(("tie_word_embeddings", "attention_bias"), _FLAG),
    "rms_norm_eps": _numbers(1e-12, 1e-3),
    "rope_theta": _numbers(100, 1e10),
    "hidden_act": _among(["silu"]),
    "mlp_bias": _among([False]),
    "partial_rotary_factor": _among([1, 1.0]),
}
_NEEDED = ("num_attention_heads", "num_hidden_layers")
_ORIGINAL = "original_max_position_embeddings"
# The fields of `rope_scaling` and their values.
_ROPE_FIELDS: dict[str, _Allowed] = {
    **dict.fromkeys(("rope_type", "type"), _TEXT),
    "rope_theta": _FIELDS["rope_theta"],
    "partial_rotary_factor": _FIELDS["partial_rotary_factor"],
    "factor": _numbers(1, 1000),
    _ORIGINAL: _COUNT,
    **dict.fromkeys(("low_freq_factor", "high_freq_factor"), _numbers(1e-3, 1000)),
    **dict.fromkeys(("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"), _numbers(0, 1000)),
    "truncate": _FLAG,
}
_OF_EVERY_ROPE = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
_LLAMA3 = {"factor", "low_freq_factor", "high_freq_factor", _ORIGINAL}
_YARN = {"attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"}
# For each kind of scaling, the fields that it needs and those that it may have.
_ROPES: dict[str, tuple[set[str], set[str]]] = {
    "default": (set(), set()),
    "linear": ({"factor"}, set()),
    "llama3": (_LLAMA3, set()),
    "yarn": ({"factor"}, {_ORIGINAL} | _YARN),
}


def read_shape(folder: Path) -> Shape:
    """Raises UnknownModel if a field is missing, wrong or not supported."""
    config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    if not isinstance(config, Mapping):
        raise UnknownModel(f"`{CONFIG}` is not a JSON object")
    # A field that is null counts as missing.
    config = {name: value for name, value in config.items() if value is not None}
    kind = _check_kind(config)
    for name in _NEEDED + (() if "head_dim" in config else ("hidden_size",)):
        if name not in config:
            raise UnknownModel(f"`{name}`: missing")
    _check_values(config, _FIELDS)
    longest = config.get("max_position_embeddings", 2048)
    rope = _read_rope(config, longest)
    heads = config["num_attention_heads"]
    return Shape(
        layers=config["num_hidden_layers"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads", heads),
        head_size=config.get("head_dim") or config["hidden_size"] // heads,
        norm_eps=config.get("rms_norm_eps", 1e-6),
        rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0),
        tied=config.get("tie_word_embeddings", False),
        longest=longest,
        biased=kind == "qwen2" or (kind != "mistral" and config.get("attention_bias", False)),
        normed=kind == "qwen3",
        vocabulary=config.get("vocab_size"),
        hidden=config.get("hidden_size"),
        inner=config.get("intermediate_size"),
        rope=rope,
    )


def rope_kind(rope: Mapping[str, Any]) -> str:
    """How positions are scaled, by its name in `transformers`."""
    return str(rope.get("rope_type") or rope.get("type") or "default")


def _check_kind(config: Mapping[str, Any]) -> str:
    """The family of the network, as in `_FAMILIES`."""
    names = config.get("architectures") or ["none"]
    if not isinstance(names, list) or names[0] not in _FAMILIES:
        got = names[0] if isinstance(names, list) else names
        raise OtherFamily(f"`architectures`: got `{got}`, allowed: {quote_all(tuple(_FAMILIES))}")
    kind = _FAMILIES[names[0]]
    if (family := config.get("model_type", kind)) != kind:
        raise UnknownModel(f"`model_type`: got `{family}`, but `architectures` is `{names[0]}`")
    if "auto_map" in config:
        raise UnknownModel("`auto_map`: the model comes with its own code, which is not run")
    if config.get("mlp_bias") is True:
        raise OtherFamily("`mlp_bias`: got `true`, allowed: `false`")
    if config.get("quantization_config"):
        raise OtherFamily("`quantization_config`: allowed: weights that are not quantised")
    windows = config.get("layer_types", [])
    if not isinstance(windows, list) or any(window not in _WINDOWS for window in windows):
        raise OtherFamily(f"`layer_types`: allowed: {quote_all(_WINDOWS)}")
    return kind


def _check_values(given: Mapping[str, Any], fields: Mapping[str, _Allowed], where: str = "") -> None:
    for name, allowed in fields.items():
        if name in given and not allowed.holds(given[name]):
            raise UnknownModel(f"`{where}{name}`: got {quote_all([given[name]])[:80]}, allowed: {allowed.text}")


def _read_rope(config: Mapping[str, Any], longest: int) -> Mapping[str, Any]:
    """How positions are scaled, from `rope_parameters` or `rope_scaling`."""
    places = [name for name in ("rope_parameters", "rope_scaling") if config.get(name)]
    if not places:
        return {}
    where, rope = places[0], config[places[0]]
    if not isinstance(rope, Mapping):
        raise UnknownModel(f"`{where}`: allowed: an object")
    if any(config[name] != rope for name in places):
        raise UnknownModel("`rope_scaling`: differs from `rope_parameters`: give only one of them")
    rope = {name: value for name, value in rope.items() if value is not None}
    kind = rope_kind(rope)
    if kind not in _ROPES:
        raise OtherFamily(f"`rope_scaling`: got `{kind}`, allowed: {quote_all(tuple(_ROPES))}")
    if rope.get("type", kind) != kind:
        raise UnknownModel(f"`{where}.type`: got `{rope['type']}`, but `rope_type` is `{kind}`")
    needed, further = _ROPES[kind]
    if _ORIGINAL in config and _ORIGINAL in needed | further:
        # Some configurations have it outside, where `transformers` prefers it.
        rope[_ORIGINAL] = config[_ORIGINAL]
    if missing := sorted(needed - rope.keys()):
        raise UnknownModel(f"`{where}.{missing[0]}`: missing, `{kind}` needs it")
    if unknown := sorted(rope.keys() - _OF_EVERY_ROPE - needed - further):
        raise UnknownModel(f"`{where}.{unknown[0]}`: `{kind}` does not use it")
    _check_values(rope, _ROPE_FIELDS, f"{where}.")
    _check_scaling(rope, config, longest, where)
    return rope


def _check_scaling(rope: Mapping[str, Any], config: Mapping[str, Any], longest: int, where: str) -> None:
    """Refuses fields that contradict each other, or other fields of the configuration."""
    if (theta := rope.get("rope_theta")) and config.get("rope_theta", theta) != theta:
        raise UnknownModel(f"`rope_theta`: got `{config['rope_theta']:g}`, but `{where}.rope_theta` is `{theta:g}`")
    if rope.get("low_freq_factor", 0) >= rope.get("high_freq_factor", math.inf):
        raise UnknownModel(f"`{where}.low_freq_factor`: allowed: less than `high_freq_factor`")
    if (rope.get("beta_slow") or 1) >= (rope.get("beta_fast") or 32):
        raise UnknownModel(f"`{where}.beta_slow`: allowed: less than `beta_fast`")
    original = rope.get(_ORIGINAL, longest)
    if original > longest:
        text = f"got {original}, allowed: at most `max_position_embeddings`, {longest}"
        raise UnknownModel(f"`{where}.{_ORIGINAL}`: {text}")
