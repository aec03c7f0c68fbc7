from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
import torch
from safetensors.torch import save_file
from specs import make_spec
from torch import nn

from marina.archiver import sources
from marina.archiver.sources import load_source
from marina.archiver.weights import load_weights
from marina.config.errors import SourceError

MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
    def forward(self, x):
        return self.layer(x)

def build():
    return Net()

def fails():
    raise RuntimeError("no licence")

def ends():
    raise SystemExit(3)

def elsewhere():
    import os
    os.chdir("/")
    return Net()

def half():
    return Net().half()

def empty():
    return nn.Linear(3, 2, device="meta")

number = 7

def no_module():
    return "net"
"""
FILE: dict[str, Any] = {
    "model.source": "./model.py:build",
    "model.handler": "tensor",
    "model.inputs": {"x": {"shape": [3]}},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model.py").write_text(MODEL, encoding="utf-8")
    return tmp_path


def load(folder: Path, changes: dict[str, Any]) -> sources.Source:
    return load_source(make_spec(FILE | changes, folder / "spec.yaml"))


def message(folder: Path, changes: dict[str, Any]) -> str:
    with pytest.raises(SourceError) as raised:
        load(folder, changes)
    return str(raised.value).replace(str(folder), "DIR")


def test_random_weights_are_the_same_every_time(folder: Path) -> None:
    weights, same = (load(folder, {}).network.state_dict() for _ in range(2))
    assert torch.equal(weights["layer.weight"], same["layer.weight"])


@pytest.mark.parametrize("name", ["w.safetensors", "w.pt", "w.pth"])
def test_a_state_dict_is_loaded_from_every_kind_of_file(name: str, folder: Path) -> None:
    state = {"layer.weight": torch.full((2, 3), 7.0), "layer.bias": torch.ones(2)}
    save_file(state, folder / name) if name.endswith("safetensors") else torch.save(state, folder / name)
    loaded = load(folder, {"model.weights": f"./{name}"}).network.state_dict()
    assert torch.equal(loaded["layer.weight"], state["layer.weight"])


def test_a_network_is_in_evaluation_mode(folder: Path) -> None:
    assert not load(folder, {}).network.training


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({"model.source": "./model.py:biuld"}, "DIR/spec.yaml: `model.source`: `./model.py` has no function "
                     "`biuld`\n\nhint: source: ./model.py:build", id="a misspelt factory"),
        pytest.param({"model.source": "./model.py:number"}, "DIR/spec.yaml: `model.source`: `./model.py` has no function "
                     "`number`", id="a factory that is a number"),
        pytest.param({"model.source": "./model.py:fails"}, "DIR/spec.yaml: `model.source`: `./model.py:fails` failed: "
                     "RuntimeError: no licence", id="a factory that fails"),
        pytest.param({"model.source": "./model.py:ends"}, "DIR/spec.yaml: `model.source`: `./model.py:ends` ended the "
                     "program, with exit code 3\n\nhint: put what a training does under `if __name__ == \"__main__\":`",
                     id="a factory that ends the program"),
        pytest.param({"model.source": "./script.py:build"}, "DIR/spec.yaml: `model.source`: `DIR/script.py` ended the "
                     "program, with exit code 2", id="a script that parses its arguments"),
        pytest.param({"model.source": "./model.py:half"}, "`layer.weight` of `./model.py:half` is float16, allowed: "
                     "float32 values\n\nhint: return `network.float()`, and choose `precision: bf16` in the spec",
                     id="a network in half precision"),
        pytest.param({"model.source": "./model.py:empty"}, "`weight` of `./model.py:empty` is on the device `meta`, "
                     "without values, allowed: float32 values", id="a network without values"),
        pytest.param({"model.source": "./model.py:no_module"}, "DIR/spec.yaml: `model.source`: `./model.py:no_module` "
                     "returned `str`, allowed: a `torch.nn.Module`", id="a factory of something else"),
        pytest.param({"model.source": "./gone.py:build"}, "DIR/spec.yaml: `model.source`: no such file: `DIR/gone.py`",
                     id="no file"),
        pytest.param({"model.source": "./broken.py:build"}, "DIR/spec.yaml: `model.source`: `DIR/broken.py` failed at "
                         "`DIR/broken.py:1`: "
                     "ModuleNotFoundError: No module named 'nowhere'", id="a file that does not import"),
        pytest.param({"model.source": "./gone.pt2", "model.weights": None}, "DIR/spec.yaml: `model.source`: no such file: "
                     "`DIR/gone.pt2`", id="no program"),
        pytest.param({"model.weights": "./gone.pt"}, "DIR/spec.yaml: `model.weights`: no such file: `DIR/gone.pt`",
                     id="no weights"),
        pytest.param({"model.weights": "./broken.safetensors"}, "DIR/spec.yaml: `model.weights`: "
                     "`DIR/broken.safetensors` cannot be read: Error while deserializing header: header too large",
                     id="broken weights"),
        pytest.param({"model.weights": "./cut.pt"}, "DIR/spec.yaml: `model.weights`: `DIR/cut.pt` cannot be read: "
                     "EOFError, it may be cut off", id="weights that are cut off"),
        pytest.param({"model.weights": "./levels.pt"}, "DIR/spec.yaml: `model.weights`: `layer.weight` of "
                     "`DIR/levels.pt` is int8, but float32 in `./model.py:build`", id="quantised weights"),
        pytest.param({"model.weights": "./net.onnx.pt"}, "DIR/spec.yaml: `model.weights`: `DIR/net.onnx.pt` is a Keras "
                     "model or its weights, and Marina packages PyTorch\n\nhint: --source", id="another library's"),
        pytest.param({"model.weights": "./frozen.pt"}, "`DIR/frozen.pt` has no weights by name, because it was frozen",
                     id="frozen TorchScript"),
        pytest.param({"model.weights": "./checkpoint.pt"}, "DIR/spec.yaml: `model.weights`: `DIR/checkpoint.pt` holds "
                     "`ema`, `epoch`, `student`, allowed: names to tensors, or one state dict under a key\n\n"
                     "hint: torch.save(torch.load(FILE)['KEY'], NEW-FILE), with the KEY of the weights to serve",
                     id="a checkpoint with several"),
        pytest.param({"model.weights": "./nested.pt"}, "holds `run.mean`, `run.now`, allowed", id="several that fit"),
        pytest.param({"model.weights": "./list.pt"}, "DIR/spec.yaml: `model.weights`: `DIR/list.pt` is not a state dict, "
                     "allowed: names to tensors", id="a list"),
        pytest.param({"model.weights": "./other.pt"}, "DIR/spec.yaml: `model.weights`: `DIR/other.pt` does not fit "
                     '`./model.py:build`: Missing key(s) in state_dict: "layer.weight", "layer.bias".; Unexpected '
                     'key(s) in state_dict: "a".', id="weights of another model"),
    ],
)  # fmt: skip
def test_a_wrong_source_says_what_is_wrong(changes: dict[str, Any], expected: str, folder: Path) -> None:
    (folder / "broken.py").write_text("import nowhere\n", encoding="utf-8")
    (folder / "broken.safetensors").write_bytes(b"\xff" * 64)
    (folder / "script.py").write_text(
        "import argparse\nargparse.ArgumentParser().parse_args(['x'])\n", encoding="utf-8"
    )
    torch.jit.freeze(torch.jit.script(nn.Linear(3, 2).eval())).save(folder / "frozen.pt")
    (folder / "net.onnx.pt").write_bytes(b"\x89HDF\r\n")
    (folder / "cut.pt").write_bytes(b"")
    levels = {"layer.weight": torch.ones(2, 3, dtype=torch.int8), "layer.bias": torch.ones(2)}
    torch.save(levels, folder / "levels.pt")
    weights = {"a": torch.ones(1)}
    torch.save({"student": weights, "ema": weights, "epoch": 3}, folder / "checkpoint.pt")
    torch.save({"run": {"now": STATE, "mean": STATE}}, folder / "nested.pt")
    torch.save([torch.ones(1)], folder / "list.pt")
    torch.save({"a": torch.ones(1)}, folder / "other.pt")
    assert expected in message(folder, changes)


def test_a_state_dict_with_other_things_beside_it_is_loaded_and_a_copy_of_it_is_noted(folder: Path) -> None:
    state = {"layer.weight": torch.full((2, 3), 7.0), "layer.bias": torch.zeros(2)}
    average = {name: value + 1 for name, value in state.items()}
    torch.save({**state, "config": {"width": 3}, "ema": average}, folder / "flat.pt")
    loaded = load(folder, {"model.weights": "./flat.pt"})
    assert torch.equal(loaded.network.state_dict()["layer.weight"], state["layer.weight"])
    assert loaded.notes == ("`flat.pt` also holds weights under `ema`; those under no key are used",)


def test_labels_are_utf8_with_or_without_the_mark_of_windows(folder: Path) -> None:
    changes = {
        "model.handler": "image",
        "model.inputs": None,
        "model.image": {"height": 4, "width": 4},
        "model.labels": "./labels.txt",
    }
    (folder / "labels.txt").write_bytes(b"\xef\xbb\xbfcat\r\ndog\r\n\r\n")
    assert load(folder, changes).labels == ("cat", "dog")
    (folder / "labels.txt").write_bytes(b"caf\xe9\n")
    assert message(folder, changes).startswith("DIR/spec.yaml: `model.labels`: `DIR/labels.txt` is not UTF-8: ")


def test_a_factory_that_changes_the_current_folder_does_so_only_for_itself(folder: Path) -> None:
    before = Path.cwd()
    load(folder, {"model.source": "./model.py:elsewhere"})
    assert Path.cwd() == before


@pytest.mark.parametrize("key", ["state_dict", "model_state_dict", "model", "anything"])
def test_the_state_dict_of_a_checkpoint_is_found_under_its_key(key: str, folder: Path) -> None:
    state = {"layer.weight": torch.full((2, 3), 7.0), "layer.bias": torch.zeros(2)}
    torch.save({key: state, "epoch": 3, "optimizer": {"state": {}, "lr": 0.1}}, folder / "checkpoint.pt")
    loaded = load(folder, {"model.weights": "./checkpoint.pt"}).network.state_dict()
    assert torch.equal(loaded["layer.weight"], state["layer.weight"])


@pytest.mark.parametrize("around", ["model", "module", "_orig_mod"])
def test_weights_that_were_trained_inside_a_module_lose_its_name(around: str, folder: Path) -> None:
    state = {f"{around}.layer.weight": torch.full((2, 3), 7.0), f"{around}.layer.bias": torch.zeros(2)}
    torch.save({"state_dict": state, "epoch": 3, "hyper_parameters": {"lr": 0.1}}, folder / "last.ckpt")
    loaded = load(folder, {"model.weights": "./last.ckpt"}).network.state_dict()
    assert torch.equal(loaded["layer.weight"], state[f"{around}.layer.weight"])


STATE = {"layer.weight": torch.full((2, 3), 7.0), "layer.bias": torch.zeros(2)}


def behind(prefix: str) -> dict[str, torch.Tensor]:
    return {prefix + name: value for name, value in STATE.items()}


@pytest.mark.parametrize(
    "content",
    [
        pytest.param({"model": STATE, "mean": torch.ones(3)}, id="a tensor beside it"),
        pytest.param({**STATE, "epoch": 3}, id="a number among the tensors"),
        pytest.param({"model": {"state_dict": STATE}, "epoch": 3}, id="a key in a key"),
        pytest.param(
            {"ema": STATE, "optimizer": {"state": {0: {"exp_avg": torch.ones(2)}}}}, id="an optimiser's tensors"
        ),
        pytest.param({"generator": STATE, "critic": {"a": torch.ones(1)}}, id="another network's"),
        pytest.param({"state_dict": {**behind("model."), "criterion.weight": torch.ones(3)}}, id="a loss with weights"),
        pytest.param(behind("module._orig_mod."), id="compiled, then in parallel"),
        pytest.param({"model": behind("_orig_mod.module.")}, id="in parallel, then compiled"),
        pytest.param({**behind("module."), "n_averaged": torch.tensor(3)}, id="an average of weights"),
        pytest.param(behind("backbone."), id="any other name"),
    ],
)
def test_weights_are_found_however_a_training_saved_them(content: dict[str, Any], folder: Path) -> None:
    torch.save(content, folder / "last.ckpt")
    loaded = load(folder, {"model.weights": "./last.ckpt"})
    assert torch.equal(loaded.network.state_dict()["layer.weight"], STATE["layer.weight"])
    assert loaded.notes == ()


def test_of_several_prefixes_a_usual_one_is_used_and_the_others_are_named(folder: Path) -> None:
    average = {name: value + 1 for name, value in behind("ema.").items()}
    torch.save({"state_dict": {**behind("model."), **average}}, folder / "last.ckpt")
    loaded = load(folder, {"model.weights": "./last.ckpt"})
    assert torch.equal(loaded.network.state_dict()["layer.weight"], STATE["layer.weight"])
    assert loaded.notes == ("`last.ckpt` also holds weights with the prefix `ema.`; `model.` is used",)


def test_a_part_of_another_network_is_not_mistaken_for_the_network(folder: Path) -> None:
    torch.save({**behind("backbone."), "head.weight": torch.ones(1)}, folder / "other.pt")
    assert "does not fit `./model.py:build`: Missing key(s)" in message(folder, {"model.weights": "./other.pt"})


def test_no_guess_is_made_between_two_networks_that_both_fit(folder: Path) -> None:
    torch.save({**behind("student."), **behind("teacher.")}, folder / "both.pt")
    assert "does not fit `./model.py:build`: Missing key(s)" in message(folder, {"model.weights": "./both.pt"})


def test_of_several_state_dicts_the_one_under_a_usual_key_is_used_and_the_others_are_named(folder: Path) -> None:
    average = {name: value + 1 for name, value in STATE.items()}
    torch.save({"model": STATE, "ema": average}, folder / "checkpoint.pt")
    loaded = load(folder, {"model.weights": "./checkpoint.pt"})
    assert torch.equal(loaded.network.state_dict()["layer.weight"], STATE["layer.weight"])
    assert loaded.notes == ("`checkpoint.pt` also holds weights under `ema`; those under `model` are used",)


def test_batch_norms_counter_may_be_in_half_precision_like_the_rest(folder: Path) -> None:
    network = nn.BatchNorm1d(2)
    torch.save({name: value.half() for name, value in network.state_dict().items()}, folder / "half.pt")
    assert load_weights("here", "network", network, folder / "half.pt") == ()


def test_a_file_that_is_not_a_program_gets_a_hint_how_to_export_one(folder: Path) -> None:
    (folder / "p.pt2").write_bytes(b"no program")
    text = message(folder, {"model.source": "./p.pt2", "model.weights": None})
    assert "`DIR/p.pt2` is not an exported program" in text
    assert "torch.export.save" in text


def test_a_program_defines_its_inputs(folder: Path) -> None:
    program = torch.export.export(
        nn.Linear(3, 2), (torch.zeros(4, 3),), dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=8)},)
    )
    torch.export.save(program, folder / "p.pt2")
    loaded = load(folder, {"model.source": "./p.pt2", "model.weights": None, "model.inputs": None})
    assert [(port.shape, port.dtype) for port in loaded.inputs] == [((3,), "float32")]
    assert loaded.only_batch is None


def test_a_program_with_a_fixed_batch_is_recognised(folder: Path) -> None:
    torch.export.save(torch.export.export(nn.Linear(3, 2), (torch.zeros(4, 3),)), folder / "p.pt2")
    loaded = load(folder, {"model.source": "./p.pt2", "model.weights": None, "model.inputs": None})
    assert loaded.only_batch == 4


def test_a_torchvision_model_uses_the_preset_of_its_weights() -> None:
    source = load_source(make_spec({"model.labels": "imagenet"}))
    assert source.image is not None
    assert (source.image.height, source.image.resize, source.image.mean) == (224, 256, (0.485, 0.456, 0.406))
    assert source.labels is not None
    assert (len(source.labels), source.labels[0]) == (1000, "tench")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param(
            {"model.source": "torchvision:resnet81"},
            "torchvision has no model `resnet81`\n\nhint: source: torchvision:resnet18",
            id="a misspelt model",
        ),
        pytest.param(
            {"model.source": "torchvision:lraspp_mobilenet_v3_large"},
            "spec.yaml: `model.source`: torchvision's `lraspp_mobilenet_v3_large` does not classify pictures, so Marina "
            "does not know how to read its input and write its answers\n\nhint: in model.py: `def build(): return "
            "torchvision.models.get_model('lraspp_mobilenet_v3_large', weights=None, weights_backbone=None)`, then "
            "`source: ./model.py:build`",
            id="a model for another task",
        ),
        pytest.param(
            {"model.weights": "IMAGENET1K_V9"},
            "spec.yaml: `model.weights`: got `IMAGENET1K_V9`, allowed: `DEFAULT`, `IMAGENET1K_V1`, `random` or a file",
            id="misspelt weights",
        ),
    ],
)
def test_a_wrong_torchvision_name_gets_the_right_ones(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(SourceError) as raised:
        load_source(make_spec(changes))
    assert expected in str(raised.value)


def test_weights_that_cannot_be_downloaded_say_what_to_do_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> None:
        raise URLError("no route to host")

    sources.import_torchvision()
    from torchvision.models._api import WeightsEnum

    monkeypatch.setattr(WeightsEnum, "get_state_dict", offline)
    with pytest.raises(SourceError) as raised:
        load_source(make_spec({"model.weights": "IMAGENET1K_V1"}))
    assert "could not be downloaded: <urlopen error no route to host>" in str(raised.value)
    assert "weights: ./FILE" in str(raised.value)


def test_labels_come_from_a_file(folder: Path) -> None:
    (folder / "labels.txt").write_text("cat\ndog\n", encoding="utf-8")
    image = {"model.handler": "image", "model.inputs": None, "model.image": {"height": 8, "width": 8}}
    assert load(folder, image | {"model.labels": "./labels.txt"}).labels == ("cat", "dog")
