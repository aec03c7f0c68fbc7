"""Merges a LoRA adapter, as `peft` saves it, with the model that it was trained on: each matrix gets B·A added, scaled,
and what was trained as a whole takes the place of the model's own."""

import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from marina.archiver.weights.reading import read_weights
from marina.config.errors import SourceError, listed
from marina.handlers.generation.engines.weights import weight_files

_CONFIG, _FILES = "adapter_config.json", ("adapter_model.safetensors", "adapter_model.bin")
_PREFIX, _A, _B = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
# What changes a model in another way than by B·A, with the values that change nothing.
_OTHERWISE: dict[str, tuple[Any, ...]] = {
    "alpha_pattern": (None, {}),
    "bias": (None, "none"),
    "layer_replication": (None,),
    "lora_bias": (None, False),
    "rank_pattern": (None, {}),
    "target_parameters": (None, []),
    "trainable_token_indices": (None, []),
    "use_dora": (None, False),
    "use_qalora": (None, False),
}


def merge_adapter(where: str, base: Path, adapter: Path, into: Path) -> None:
    """Writes the merged model's folder. SourceError if the adapter is of another kind, or of another model."""
    config = _read_config(where, adapter)
    if not weight_files(base):
        hint = "AutoModel….from_pretrained(FOLDER).save_pretrained(NEW-FOLDER)"
        raise SourceError(f"{where}: `{base}` has no `.safetensors`, with which an adapter is merged", hint=hint)
    file = next((adapter / name for name in _FILES if (adapter / name).is_file()), adapter / _FILES[0])
    trained = {name.removeprefix(_PREFIX): value for name, value in read_weights(where, file).items()}
    scale = config["lora_alpha"] / (math.sqrt(config["r"]) if config.get("use_rslora") else config["r"])
    shutil.copytree(base, into, ignore=shutil.ignore_patterns("*.bin", "*.h5", "*.msgpack", "*.pt", "*.pth"))
    left = dict(trained)
    for weights in weight_files(base):
        with safe_open(weights, "pt") as opened:
            metadata = opened.metadata()
        tensors = load_file(weights)
        for name, value in tensors.items():
            tensors[name] = _merged(name, value, left, scale, transposed=bool(config.get("fan_in_fan_out")))
        if weights == weight_files(base)[-1]:
            # A head that the model does not have, such as that of a classifier.
            heads = config.get("modules_to_save") or ()
            for name in [name for name in left if name.split(".")[0] in heads]:
                tensors[name] = left.pop(name).contiguous()
        save_file(tensors, into / weights.name, metadata)
    if left:
        text = f"`{adapter}` changes `{min(left)}`, which `{base}` does not have"
        raise SourceError(f"{where}: {text}", hint=f"the model that it was trained on: {_trained_on(config)}")


def _merged(
    name: str, value: torch.Tensor, left: dict[str, torch.Tensor], scale: float, *, transposed: bool
) -> torch.Tensor:
    """A tensor of the model as the adapter changes it; takes what it uses from `left`."""
    if name in left:
        return left.pop(name).to(value.dtype).contiguous()
    module = name.removesuffix(".weight")
    if module + _A not in left or module + _B not in left:
        return value
    change = left.pop(module + _B).float() @ left.pop(module + _A).float() * scale
    return (value.float() + (change.T if transposed else change)).to(value.dtype).contiguous()


def _read_config(where: str, adapter: Path) -> Mapping[str, Any]:
    try:
        config = json.loads((adapter / _CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as err:
        raise SourceError(
            f"{where}: `{adapter}` has no `{_CONFIG}` that can be read", hint="adapter: ./adapter"
        ) from err
    merge = "AutoPeftModel….from_pretrained(FOLDER).merge_and_unload().save_pretrained(NEW-FOLDER)"
    if config.get("peft_type") != "LORA":
        raise SourceError(f"{where}: `{adapter}` is `{config.get('peft_type')}`, allowed: `LORA`", hint=merge)
    if other := [name for name, values in _OTHERWISE.items() if config.get(name) not in values]:
        raise SourceError(f"{where}: `{adapter}` uses {listed(other)}, allowed: plain LoRA", hint=merge)
    return dict(config)


def _trained_on(config: Mapping[str, Any]) -> str:
    return f"hf:{config.get('base_model_name_or_path')}"
