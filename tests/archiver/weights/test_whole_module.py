"""Modules that were saved whole: read only of a trusted file, which may neither connect nor start programs."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from specs import make_spec
from torch import nn

from marina.archiver import compiling
from marina.archiver.graph import build_graph, examples
from marina.archiver.sources import load_source
from marina.archiver.weights.whole_module import load_module
from marina.config.errors import SourceError

NETS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.act = nn.Linear(3, 2), torch.nn.functional.relu
    def forward(self, x):
        return self.act(self.layer(x))
"""
SAVE = "torch.save({'model': Net().half().eval(), 'epoch': 3}, 'whole.pt')\n"


@pytest.fixture(params=["a module beside it", "the script itself"])
def whole(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A module that another process saved, whose class is in a file beside it."""
    (tmp_path / "own_nets.py").write_text(NETS)
    how = f"from own_nets import *\n{SAVE}" if "module" in request.param else NETS + SAVE
    subprocess.run([sys.executable, "-c", how], cwd=tmp_path, check=True)
    return tmp_path / "whole.pt"


def test_a_module_is_loaded_with_its_class_from_beside_the_file(whole: Path) -> None:
    with pytest.raises(SourceError, match=r"is a pickle: loading it imports .*\n\nhint: --trust-pickle, if you trust"):
        load_module("spec", whole, trust=False)
    network, notes = load_module("spec", whole, trust=True)
    assert (type(network).__name__, network.layer.weight.dtype) == ("Net", torch.float32)
    assert notes[1] == "the module under `model` of `whole.pt` is used"


def test_a_class_that_is_nowhere_is_asked_for(whole: Path) -> None:
    (whole.parent / "own_nets.py").rename(whole.parent / "other.txt")
    sys.modules.pop("own_nets", None)
    with pytest.raises(SourceError, match=r"needs (the class `Net` of the script|`own_nets\.Net`)"):
        load_module("spec", whole, trust=True)


class Acts:
    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call[0], self.call[1:]


@pytest.mark.parametrize(
    "call",
    [(os.system, "true"), (subprocess.check_call, ["true"]), (socket.create_connection, ("127.0.0.1", 9))],
    ids=["a shell", "a program", "a connection"],
)
def test_a_trusted_file_may_neither_connect_nor_start_programs(call: tuple[Any, ...], tmp_path: Path) -> None:
    torch.save({"model": nn.Linear(3, 2), "more": Acts(*call)}, tmp_path / "acts.pt")
    with pytest.raises(SourceError, match="may neither connect nor start programs"):
        load_module("spec", tmp_path / "acts.pt", trust=True)
    assert subprocess.run(["true"], check=False).returncode == 0


def test_weights_alone_are_no_module(tmp_path: Path) -> None:
    torch.save(nn.Linear(3, 2).state_dict(), tmp_path / "state.pt")
    with pytest.raises(SourceError, match=r"holds no module.*\n\nhint: --source \./model\.py:Net --weights"):
        load_module("spec", tmp_path / "state.pt", trust=True)


def scripted(network: nn.Module) -> Any:
    return torch.jit.script(network)


def traced(network: nn.Module) -> Any:
    return torch.jit.trace(network, torch.rand(2, 3))  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("make", [scripted, traced])
def test_torchscript_is_exported_for_one_row(make: Callable[[nn.Module], Any], tmp_path: Path) -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    make(network).save(tmp_path / "script.pt")
    spec = make_spec(
        {
            "model.source": "./script.pt",
            "model.weights": None,
            "model.handler": "tensor",
            "model.inputs": {"x": {"shape": [3]}},
            "model.batch_sizes": [1],
            "model.trust_pickle": True,
        },
        tmp_path / "spec.yaml",
    )
    source = load_source(spec)
    assert source.only_batch == 1
    program = compiling.export_graph(spec, build_graph(spec, source, "fp32"), examples(spec, source, 1), source)
    row = torch.rand(1, 3)
    assert torch.equal(program.module()(row)[0], network(row))


LOOKS = """
import os, socket
from own_nets import Net

class Looks(Net):
    def forward(self, x):
        if type(x).__name__ == "Tensor" and os.environ.get("SEEN"):
            with open(os.environ["SEEN"], "w") as seen:
                seen.write(",".join(name for _, name in socket.if_nameindex()))
        return super().forward(x)
"""


@pytest.mark.skipif(subprocess.run(["unshare", "-Urn", "true"], check=False).returncode != 0, reason="no namespaces")
def test_what_a_module_from_a_pickle_computes_has_no_network(tmp_path: Path) -> None:
    (tmp_path / "own_nets.py").write_text(NETS)
    (tmp_path / "looks.py").write_text(LOOKS)
    how = "import torch; from looks import Looks; torch.save(Looks(), 'whole.pt')"
    subprocess.run([sys.executable, "-c", how], cwd=tmp_path, check=True)
    command = [sys.executable, "-m", "marina", "init", "mine", "--source", "whole.pt", "--input", "x:float32:3"]
    environment = os.environ | {"SEEN": str(tmp_path / "seen")}
    subprocess.run([*command, "--trust-pickle"], cwd=tmp_path, env=environment, check=False)
    assert (tmp_path / "seen").read_text() == "lo"
