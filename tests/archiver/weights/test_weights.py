"""Files of weights as libraries and Git leave them: shared tensors that are kept once, pointers instead of files."""

from argparse import Namespace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_model
from torch import nn

from archiver.weights import load_weights
from config.errors import SourceError
from config.hf_folder import FolderRefused, read_model_folder

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


def test_layers_that_share_nothing_must_all_be_in_the_file(tmp_path: Path) -> None:
    network = Tied()
    network.scores = nn.Linear(4, 9, bias=False)
    save_model(Tied(), str(tmp_path / "tied.safetensors"))
    with pytest.raises(SourceError, match="does not fit"):
        load_weights("spec", "./model.py:Tied", network, tmp_path / "tied.safetensors")


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


def test_a_checkpoint_with_other_objects_is_saved_again_by_its_key(tmp_path: Path) -> None:
    torch.save({"model": Tied().state_dict(), "args": Namespace(epochs=3)}, tmp_path / "last.pt")
    with pytest.raises(SourceError, match=r"or torch\.save\(saved\['KEY'\], 'weights\.pt'\) for a checkpoint"):
        load_weights("spec", "./model.py:Tied", Tied(), tmp_path / "last.pt")
