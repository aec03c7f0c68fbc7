"""Networks that are quantised already, or that return a list with an entry for each row, are refused."""

import warnings
from pathlib import Path

import pytest
import torch
from specs import make_spec

from marina.archiver.graph import build_graph, output_ports
from marina.archiver.quantize import quantised_kind, silence_torchao
from marina.archiver.sources import load_source
from marina.config.errors import SourceError
from marina.config.spec import Spec

MODEL = """
import torch
from torch import nn

def dynamic():
    return torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 2)), {nn.Linear})

def torchao():
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    network = nn.Sequential(nn.Linear(4, 2))
    quantize_(network, Int8WeightOnlyConfig())
    return network

class Adds(nn.Module):
    def __init__(self):
        super().__init__()
        self.sums = torch.ao.nn.quantized.FloatFunctional()

    def forward(self, x):
        return self.sums.add(x, x)

class Boxes(nn.Module):
    def forward(self, x):
        return [{"boxes": row[row > 2]} for row in x]
"""


def spec_of(name: str, folder: Path) -> Spec:
    (folder / "model.py").write_text(MODEL)
    source = {"model.source": f"./model.py:{name}", "model.handler": "tensor", "model.inputs": {"x": {"shape": [4]}}}
    return make_spec(source, folder / "spec.yaml")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "kind"), [("dynamic", "Linear"), ("torchao", "Int8Tensor")])
def test_a_network_that_is_quantised_already_is_refused(name: str, kind: str, tmp_path: Path) -> None:
    silence_torchao()
    with pytest.raises(SourceError) as raised:
        load_source(spec_of(name, tmp_path))
    assert raised.value.message.endswith(f"`./model.py:{name}` holds a quantised `{kind}`, allowed: float32 values")
    assert raised.value.hint == "return the network before it is quantised, and choose `precision: int8` in the spec"


def test_functions_of_floats_for_later_quantising_are_not_quantised() -> None:
    made: dict[str, type] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(MODEL, made)
        assert quantised_kind(made["Adds"]()) is None


def test_a_list_with_an_entry_for_each_row_is_to_be_padded(tmp_path: Path) -> None:
    spec = spec_of("Boxes", tmp_path)
    with pytest.raises(SourceError) as raised:
        output_ports(spec, build_graph(spec, load_source(spec), "fp32"), (torch.rand(1, 4),))
    assert raised.value.hint == (
        "return one tensor of what each row has, padded to one size, and beside it how much of that is used"
    )
