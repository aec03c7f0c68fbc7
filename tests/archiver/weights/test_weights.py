"""Files of weights as libraries and Git leave them: shared tensors that are kept once, pointers instead of files."""

import json
from argparse import Namespace
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file, save_model
from specs import make_spec
from torch import nn

from marina.archiver.sources import import_torchvision, load_source
from marina.archiver.weights import load_weights
from marina.config.errors import SourceError
from marina.config.hf_folder import FolderRefused, read_model_folder

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 4)
        self.scores = nn.Linear(4, 9, bias=False)
        self.scores.weight = self.words.weight


@pytest.mark.parametrize("prefix", ["", "model."])
def test_a_tensor_that_two_layers_share_may_be_saved_once(prefix: str, tmp_path: Path) -> None:
    trained, network = Tied(), Tied()
    save_model(nn.ModuleDict({"model": trained}) if prefix else trained, str(tmp_path / "tied.safetensors"))
    assert load_weights("spec", "./model.py:Tied", network, tmp_path / "tied.safetensors") == ()
    assert torch.equal(network.scores.weight, trained.scores.weight)


def test_a_tensor_that_two_layers_share_is_refused_with_two_values(tmp_path: Path) -> None:
    save_file({"words.weight": torch.ones(9, 4), "scores.weight": torch.zeros(9, 4)}, tmp_path / "two.safetensors")
    with pytest.raises(
        SourceError, match=r"`words\.weight` and `scores\.weight` differ in `.*`, but are one tensor in"
    ):
        load_weights("spec", "./model.py:Tied", Tied(), tmp_path / "two.safetensors")


def test_layers_that_share_nothing_must_all_be_in_the_file(tmp_path: Path) -> None:
    network = Tied()
    network.scores = nn.Linear(4, 9, bias=False)
    save_model(Tied(), str(tmp_path / "tied.safetensors"))
    with pytest.raises(SourceError, match="does not fit"):
        load_weights("spec", "./model.py:Tied", network, tmp_path / "tied.safetensors")


def test_weights_beside_their_lora_are_to_be_merged(tmp_path: Path) -> None:
    adapted = {"base_model.model.words.base_layer.weight": torch.ones(9, 4), "words.lora_A.weight": torch.ones(2, 4)}
    save_file(adapted, tmp_path / "adapted.safetensors")
    with pytest.raises(SourceError, match=r"does not fit .*\n\nhint: torch\.save\(model\.merge_and_unload\(\)"):
        load_weights("spec", "./model.py:Tied", Tied(), tmp_path / "adapted.safetensors")


@pytest.mark.parametrize("name", ["model.safetensors", "model.pt"])
def test_a_pointer_of_git_lfs_is_no_file_of_weights(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(POINTER)
    with pytest.raises(SourceError, match="is only Git LFS's pointer to the file\n\nhint: git lfs pull"):
        load_weights("spec", "./model.py:Tied", Tied(), tmp_path / name)


def test_a_pointer_of_git_lfs_is_no_file_of_a_model(tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "model.safetensors").write_text(POINTER)
    with pytest.raises(FolderRefused, match=r"model\.safetensors` is only Git LFS's pointer to the file"):
        read_model_folder(tmp_path)


class Breaks:
    """Runs code when Python unpickles it."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


class Settings(dict[str, Any]):
    """A dictionary of a class of its own, as libraries of training keep their settings in."""


@pytest.mark.parametrize(
    "how",
    [{}, {"pickle_protocol": 4}, {"_use_new_zipfile_serialization": False}],
    ids=["as by default", "a newer pickle", "the older format"],
)
def test_weights_beside_any_other_objects_are_read_and_nothing_of_these_is_run(
    how: dict[str, Any], tmp_path: Path
) -> None:
    trained, network = Tied(), Tied()
    beside = {
        "args": Namespace(epochs=3),
        "best": np.float64(0.5),
        "kind": Kind.A,
        "log": {tmp_path},
        "seen": {Kind.A: 1},
    }
    more = {"settings": Settings(rate=0.1), "breaks": Breaks(tmp_path / "ran")}
    torch.save({"model": trained.state_dict(), **beside, **more}, tmp_path / "last.pth.tar", **how)
    assert load_weights("spec", "./model.py:Tied", network, tmp_path / "last.pth.tar") == ()
    assert torch.equal(network.scores.weight, trained.scores.weight)
    assert not (tmp_path / "ran").exists()


class Kind(Enum):
    A = 1


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.register_buffer("scale", torch.ones(1))
        self.register_buffer("cache", torch.zeros(2), persistent=False)
        self.plain = torch.ones(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.body(x) * self.scale
        return result


def save_whole(network: nn.Module, file: Path) -> None:
    torch.save(network, file)


def save_beside_its_epoch(network: nn.Module, file: Path) -> None:
    torch.save({"epoch": 3, "model": network, "optimizer": torch.optim.Adam(network.parameters())}, file)


def save_traced(network: nn.Module, file: Path) -> None:
    torch.jit.trace(network.eval(), torch.rand(2, 4)).save(file)  # type: ignore[no-untyped-call]


def save_as_safetensors(network: nn.Module, file: Path) -> None:
    save_file(network.state_dict(), file)


@pytest.mark.parametrize("save", [save_whole, save_beside_its_epoch, save_traced, save_as_safetensors])
def test_weights_are_read_by_content_from_whatever_a_network_was_saved_as(
    save: Callable[[nn.Module, Path], None], tmp_path: Path
) -> None:
    trained, network = Deep(), Deep()
    nn.init.uniform_(trained.body[1].running_mean)
    save(trained, tmp_path / "pytorch_model.bin")
    assert load_weights("spec", "./model.py:Deep", network, tmp_path / "pytorch_model.bin") == ()
    loaded = network.state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in trained.state_dict().items())


def save_parts(trained: nn.Module, folder: Path, kind: str) -> Path:
    """Saves a network in two files, and their index."""
    halves = list(trained.state_dict().items())[:2], list(trained.state_dict().items())[2:]
    names = [f"model-{number}-of-00002.{kind}" for number in ("00001", "00002")]
    for name, half in zip(names, map(dict, halves), strict=True):
        save_file(half, folder / name) if kind == "safetensors" else torch.save(half, folder / name)
    index = {key: name for name, half in zip(names, halves, strict=True) for key, _ in half}
    (folder / f"model.{kind}.index.json").write_text(json.dumps({"weight_map": index}))
    return folder / f"model.{kind}.index.json"


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_weights_in_several_files_are_read_by_their_index(kind: str, tmp_path: Path) -> None:
    trained, network = Deep(), Deep()
    load_weights("spec", "./model.py:Deep", network, save_parts(trained, tmp_path, kind))
    assert torch.equal(network.body[0].weight, trained.body[0].weight)


def test_an_index_names_files_beside_it_that_have_all_it_says(tmp_path: Path) -> None:
    index = save_parts(Deep(), tmp_path, "safetensors")
    named = json.loads(index.read_text())["weight_map"]
    first = next(iter(named))
    index.write_text(json.dumps({"weight_map": named | {"more": named[first]}}))
    with pytest.raises(SourceError, match="`more` is in none of the files that"):
        load_weights("spec", "./model.py:Deep", Deep(), index)
    index.write_text(json.dumps({"weight_map": named | {first: "../elsewhere.safetensors"}}))
    with pytest.raises(SourceError, match=r"names `\.\./elsewhere\.safetensors`, allowed: files beside it"):
        load_weights("spec", "./model.py:Deep", Deep(), index)


class Versioned(nn.Module):
    """Refuses weights without the version of the layer that saved them, as torchvision's MNASNet does."""

    _version = 2

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(4, 9)
        self.norm = nn.BatchNorm1d(9)
        self.loaded_version: int | None = None

    def _load_from_state_dict(self, state_dict: Any, prefix: str, local_metadata: dict[str, int], *rest: Any) -> None:
        self.loaded_version = local_metadata.get("version")
        if self.loaded_version not in (1, 2):
            raise ValueError(f"version should be set to 1 or 2 instead of {self.loaded_version}")
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)


@pytest.mark.parametrize("prefix", ["", "module."])
def test_layers_learn_which_version_of_them_saved_the_file(prefix: str, tmp_path: Path) -> None:
    trained, network = Versioned(), Versioned()
    trained._version = 1
    torch.save((nn.ModuleDict({"module": trained}) if prefix else trained).state_dict(), tmp_path / "net.pt")
    load_weights("spec", "./model.py:Versioned", network, tmp_path / "net.pt")
    assert (network.loaded_version, bool(torch.equal(network.scores.weight, trained.scores.weight))) == (1, True)


def test_a_file_without_versions_counts_as_saved_by_the_network_of_now(tmp_path: Path) -> None:
    trained, network = Versioned(), Versioned()
    state = {name: value for name, value in trained.state_dict().items() if not name.endswith("num_batches_tracked")}
    save_file(state, str(tmp_path / "net.safetensors"))
    load_weights("spec", "./model.py:Versioned", network, tmp_path / "net.safetensors")
    assert network.loaded_version == 2


def test_a_layer_that_refuses_its_weights_is_no_defect(tmp_path: Path) -> None:
    save_file(nn.ModuleDict({"body": Versioned()}).state_dict(), str(tmp_path / "net.safetensors"))
    with pytest.raises(SourceError, match=r"does not fit `\./model\.py:Net`: version should be set to 1 or 2"):
        load_weights("spec", "./model.py:Net", nn.ModuleDict({"body": Versioned()}), tmp_path / "net.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "resize"), [("resnet50-0676ba61.pth", 256), ("resnet50-11ad3fa6.pth", 232), ("mine.pth", 232)]
)
def test_a_downloaded_file_of_torchvision_gets_the_pictures_that_it_was_trained_with(
    name: str, resize: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_torchvision()
    monkeypatch.setattr("marina.archiver.sources.load_weights", lambda *_: ())
    spec = make_spec({"model.source": "torchvision:resnet50", "model.weights": f"./{name}"}, tmp_path / "spec.yaml")
    source = load_source(spec)
    assert source.image is not None
    assert source.image.resize == resize
    note = "as for torchvision's `IMAGENET1K_V2`: set `model.image` if `./mine.pth` was trained otherwise"
    assert [note in text for text in source.notes] == ([True] if name == "mine.pth" else [])


@pytest.mark.parametrize(
    ("weights", "expected"), [("random", False), ("./mine.pth", False), ("./googlenet-1378be20.pth", True)]
)
def test_weights_of_torchvision_get_the_normalisation_that_they_expect(
    weights: str, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_torchvision()
    monkeypatch.setattr("marina.archiver.sources.load_weights", lambda *_: ())
    monkeypatch.setattr("torchvision.models.get_model", lambda *_, **__: Small())
    spec = make_spec({"model.source": "torchvision:googlenet", "model.weights": weights}, tmp_path / "spec.yaml")
    assert load_source(spec).network.transform_input is expected


class Small(nn.Module):
    """Stands in for a network whose own weights take seconds to draw."""

    transform_input = False
