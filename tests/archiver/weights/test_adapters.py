"""LoRA adapters in the form in which `peft` saves them, merged with the model that they were trained on."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from specs import make_spec

from marina.archiver.package import _with_adapter
from marina.archiver.weights.adapters import merge_adapter
from marina.config.errors import SourceError
from marina.config.progress import Progress

BASE = {"model.q.weight": torch.randn(6, 4), "model.v.weight": torch.randn(6, 4), "model.norm.weight": torch.ones(4)}
Q = "base_model.model.model.q.lora_"
LORA = {f"{Q}A.weight": torch.randn(2, 4), f"{Q}B.weight": torch.randn(6, 2)}
HEAD = {"base_model.model.score.weight": torch.randn(3, 4)}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A model in two files."""
    folder = tmp_path / "base"
    folder.mkdir()
    names = {name: f"model-0000{at // 2 + 1}-of-00002.safetensors" for at, name in enumerate(BASE)}
    for file in set(names.values()):
        save_file({name: BASE[name] for name in BASE if names[name] == file}, folder / file, {"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    (folder / "config.json").write_text("{}")
    return folder


def saved(folder: Path, tensors: dict[str, torch.Tensor], **config: Any) -> Path:
    adapter = folder / "adapter"
    adapter.mkdir()
    usual = {"peft_type": "LORA", "r": 2, "lora_alpha": 8, "bias": "none", "base_model_name_or_path": "me/base"}
    (adapter / "adapter_config.json").write_text(json.dumps(usual | config))
    save_file(tensors, adapter / "adapter_model.safetensors")
    return adapter


@pytest.mark.parametrize(("config", "scale"), [({}, 4), ({"use_rslora": True}, 8 / 2**0.5)])
def test_each_matrix_gets_its_change_and_the_rest_stays(
    config: dict[str, Any], scale: float, base: Path, tmp_path: Path
) -> None:
    adapter = saved(tmp_path, LORA | HEAD, modules_to_save=["score"], **config)
    merge_adapter("spec", base, adapter, tmp_path / "merged")
    merged = {
        name: value for file in (tmp_path / "merged").glob("*.safetensors") for name, value in load_file(file).items()
    }
    change = LORA[f"{Q}B.weight"] @ LORA[f"{Q}A.weight"] * scale
    assert torch.allclose(merged.pop("model.q.weight"), BASE["model.q.weight"] + change, atol=1e-6)
    assert torch.equal(merged.pop("score.weight"), HEAD["base_model.model.score.weight"])
    assert all(torch.equal(value, BASE[name]) for name, value in merged.items())
    assert len(merged) == 2


def test_a_transposed_layer_gets_a_transposed_change(base: Path, tmp_path: Path) -> None:
    turned = {f"{Q}A.weight": torch.randn(2, 6), f"{Q}B.weight": torch.randn(4, 2)}
    merge_adapter("spec", base, saved(tmp_path, turned, fan_in_fan_out=True), tmp_path / "merged")
    got = load_file(tmp_path / "merged/model-00001-of-00002.safetensors")["model.q.weight"]
    change = (turned[f"{Q}B.weight"] @ turned[f"{Q}A.weight"] * 4).T
    assert torch.allclose(got, BASE["model.q.weight"] + change, atol=1e-6)


@pytest.mark.parametrize(
    ("tensors", "config", "told"),
    [
        (LORA, {"use_dora": True}, "uses `use_dora`, allowed: plain LoRA"),
        (LORA, {"rank_pattern": {"q": 4}}, "uses `rank_pattern`, allowed: plain LoRA"),
        (LORA, {"peft_type": "IA3"}, "is `IA3`, allowed: `LORA`"),
        (
            {"base_model.model.model.k.lora_A.weight": torch.ones(2, 4)},
            {},
            r"which `.*` does not have\n\nhint: .*hf:me/base",
        ),
    ],
)
def test_another_kind_of_adapter_is_refused(
    tensors: dict[str, torch.Tensor], config: dict[str, Any], told: str, base: Path, tmp_path: Path
) -> None:
    with pytest.raises(SourceError, match=told):
        merge_adapter("spec", base, saved(tmp_path, tensors, **config), tmp_path / "merged")


@pytest.mark.usefixtures("base")
def test_a_spec_with_an_adapter_reads_the_merged_folder(tmp_path: Path) -> None:
    saved(tmp_path, LORA)
    changes = {
        "model.source": "hf:./base",
        "model.weights": None,
        "model.handler": "text",
        "model.adapter": "./adapter",
    }
    spec = make_spec(changes | {"model.task": "embed"}, tmp_path / "spec.yaml")
    merged = _with_adapter(spec, tmp_path / "merged", Progress(quiet=True))
    assert merged.path(merged.model.folder or "") == tmp_path / "merged"
    assert (tmp_path / "merged/config.json").is_file()
