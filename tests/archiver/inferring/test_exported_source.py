"""A program that torch exported is called with its tensors in order, however the arguments of its model were nested."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import marina
from archiver.exported_source import input_values, program_network
from archiver.inferring import find_program_inputs
from archiver.sources import load_source
from config.errors import InputError, SourceError
from config.load import parse_spec

ROWS, FACTORS = torch.rand(4, 3), torch.rand(4, 1)


class Scaled(nn.Module):
    """Takes tensors in dictionaries and lists, by keyword, and values that are no tensors."""

    def forward(self, x: Any, kind: int, nothing: None = None, *, factors: Any) -> torch.Tensor:
        rows = x["rows"] if isinstance(x, dict) else x
        return rows * factors[0] * kind


@pytest.mark.parametrize("nested", [{"rows": ROWS}, ROWS], ids=["a dictionary", "a tensor"])
def test_the_tensors_of_a_program_are_its_inputs(nested: Any) -> None:
    program = torch.export.export(Scaled(), (nested, 3), {"factors": [FACTORS]})
    network = program_network(program)
    assert torch.equal(network(ROWS, FACTORS), ROWS * FACTORS * 3)
    inputs = find_program_inputs(program, network, [], 4).inputs
    assert [tensor.shape for tensor in inputs.values()] == [(3,), (1,)]
    again = torch.export.export(network, (ROWS, FACTORS), strict=True)
    assert torch.equal(again.module()(ROWS, FACTORS), ROWS * FACTORS * 3)


def test_a_number_for_all_rows_allows_only_one_row(tmp_path: Path) -> None:
    dynamic = ({0: torch.export.Dim("batch", min=1, max=8)}, {})
    program = torch.export.export(Product(), (ROWS, torch.tensor(2.0)), dynamic_shapes=dynamic)
    torch.export.save(program, tmp_path / "p.pt2")
    text = "name: p\nmodel: {source: ./p.pt2, handler: tensor}\nslo: {p99_ms: 50}\n"
    assert load_source(parse_spec(text, tmp_path / "spec.yaml")).only_batch == 1


class Product(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * y


def test_init_reads_a_program_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.export.save(torch.export.export(nn.Linear(3, 2), (ROWS,)), tmp_path / "p.pt2")
    load, files = torch.export.load, []
    monkeypatch.setattr("torch.export.load", lambda file: (files.append(file), load(file))[1])
    monkeypatch.chdir(tmp_path)
    assert marina.main(["init", "mine", "--quiet", "--source", "p.pt2"]) == 0
    assert files == [tmp_path / "p.pt2"]


def test_inputs_that_no_request_can_hold_are_refused() -> None:
    program = torch.export.export(Product(), (ROWS, torch.zeros(4, 3, dtype=torch.complex64)))
    with pytest.raises(SourceError, match="the program takes `y` of complex numbers, allowed: real ones"):
        input_values("`--source`", program)


def test_init_names_a_type_that_no_spec_can_say() -> None:
    program = torch.export.export(Product(), (ROWS, ROWS.bfloat16()))
    with pytest.raises(InputError, match="the program takes `y` as bfloat16, allowed: `bool`, `float32`"):
        find_program_inputs(program, program_network(program), [], 4)
