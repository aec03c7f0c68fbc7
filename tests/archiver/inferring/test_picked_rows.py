"""Integers by which a model indexes a table itself are limited to the places that the table has."""

from pathlib import Path
from typing import Any

from specs import make_spec

from archiver.compiling import export_graph
from archiver.graph import build_graph, examples, limited_inputs
from archiver.sources import load_source

MODEL = """
import torch
from torch import nn

class Indexing(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.eye(10))
        self.register_buffer("line", torch.arange(7.0))

    def forward(self, x, y, z):
        picked = self.table[x].sum((1, 2)) + self.line.expand(len(y), 7).gather(1, y).sum(1)
        return picked + torch.zeros(len(z), 5).scatter_add(1, z, torch.ones(len(z), 2)).amax(1)
"""


def test_a_table_that_the_model_indexes_itself_limits_its_input(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL, encoding="utf-8")
    given: dict[str, Any] = {name: {"shape": [2], "dtype": "int64"} for name in "xyz"}
    # A number below zero counts from the end, so it is allowed where the spec asks for it.
    given["x"]["min"] = -10
    changes = {"model.source": "./model.py:Indexing", "model.handler": "tensor", "model.inputs": given}
    spec = make_spec(changes, tmp_path / "spec.yaml")
    source = load_source(spec)
    program = export_graph(spec, build_graph(spec, source, "fp32"), examples(spec, source, 4), source)
    limits = [(port.name, port.min, port.max) for port in limited_inputs(spec, source, program)]
    assert limits == [("x", -10, 9), ("y", 0, 6), ("z", 0, 4)]
