"""A program that torch exported is called with its tensors in order, however the arguments of its model were nested."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import marina
from marina.archiver.exported_source import input_values, program_network
from marina.archiver.graph import build_graph, examples, output_ports
from marina.archiver.inferring import find_program_inputs
from marina.archiver.package import package
from marina.archiver.sources import load_source
from marina.config.errors import InputError, SourceError
from marina.config.load import load_spec, parse_spec
from marina.config.progress import Progress

ROWS, FACTORS = torch.rand(4, 3), torch.rand(4, 1)


class Scaled(nn.Module):
    """Takes tensors in dictionaries and lists, by keyword, and values that are no tensors."""

    def forward(self, x: Any, kind: int, nothing: None = None, *, factors: Any) -> torch.Tensor:
        rows = x["rows"] if isinstance(x, dict) else x
        return rows * factors[0] * kind


@pytest.mark.slow
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


def test_a_file_of_another_kind_says_why_it_is_no_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    torch.save(nn.Linear(3, 2).state_dict(), tmp_path / "p.pt2")
    monkeypatch.chdir(tmp_path)
    assert marina.main(["init", "mine", "--quiet", "--source", "p.pt2"]) == 2
    said = capfd.readouterr().err
    assert said.startswith("error: `--source`: `p.pt2` is not an exported program: PytorchStreamReader failed")
    assert "Traceback" not in said
    assert "warnings above" not in said


def test_init_names_outputs_that_yaml_would_read_as_truth_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.export.save(torch.export.export(Switches(), (ROWS,)), tmp_path / "p.pt2")
    monkeypatch.chdir(tmp_path)
    assert marina.main(["init", "mine", "--quiet", "--source", "p.pt2"]) == 0
    spec = load_spec(tmp_path / "mine/spec.yaml")
    assert (list(spec.model.inputs or {}), spec.model.outputs) == (["on"], ("on", "off"))


class Switches(nn.Module):
    def forward(self, on: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"on": on + 1, "off": on - 1}


@pytest.mark.parametrize(
    ("most", "sizes", "error", "hint"),
    [
        (3, "[1, 4]", "the model fails on inputs (4, 3) float32", "use other `batch_sizes`, or export the program"),
        (None, "[1, 4]", "`model.batch_sizes`: got [1, 4], but `./p.pt2` was exported for 2 rows", "batch_sizes: [2]"),
    ],
    ids=["at most three rows", "two rows"],
)
def test_batch_sizes_that_a_program_does_not_take_are_named(
    most: int | None, sizes: str, error: str, hint: str, tmp_path: Path
) -> None:
    shapes = ({0: torch.export.Dim("batch", max=most)},) if most else None
    torch.export.save(torch.export.export(nn.Linear(3, 2), (ROWS[:2],), dynamic_shapes=shapes), tmp_path / "p.pt2")
    text = f"name: p\nmodel: {{source: ./p.pt2, handler: tensor, compile: export, batch_sizes: {sizes}}}\n"
    with pytest.raises(SourceError) as raised:
        package(parse_spec(text, tmp_path / "spec.yaml"), tmp_path / "out", progress=Progress(quiet=True))
    assert error in raised.value.message
    assert hint in str(raised.value.hint)


def test_init_sends_single_rows_to_a_program_that_takes_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shapes = ({0: torch.export.Dim("batch", max=3)},)
    torch.export.save(torch.export.export(nn.Linear(3, 2), (ROWS[:2],), dynamic_shapes=shapes), tmp_path / "p.pt2")
    monkeypatch.chdir(tmp_path)
    assert marina.main(["init", "mine", "--quiet", "--source", "p.pt2"]) == 0
    assert "note: `batch_sizes` is [1]: `model.source`: the model fails on inputs (4, 3)" in capsys.readouterr().out
    assert load_spec(tmp_path / "mine/spec.yaml").model.batch_sizes == (1,)


@pytest.mark.slow
def test_init_refuses_a_program_that_takes_no_single_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shapes = ({0: 2 * torch.export.Dim("half")},)
    torch.export.save(torch.export.export(Pairs(), (torch.rand(4, 4),), dynamic_shapes=shapes), tmp_path / "p.pt2")
    monkeypatch.chdir(tmp_path)
    assert marina.main(["init", "mine", "--quiet", "--source", "p.pt2"]) == 2
    assert "the model fails on inputs (1, 4) float32" in capsys.readouterr().err


class Pairs(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(-1, 2, 4).sum(1).repeat_interleave(2, 0)


def test_a_program_that_was_exported_with_one_tensor_for_two_inputs_gets_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.export.save(torch.export.export(Product(), (ROWS, ROWS)), tmp_path / "p.pt2")
    monkeypatch.chdir(tmp_path)
    assert marina.main(["init", "mine", "--quiet", "--source", "p.pt2"]) == 0
    assert "note: the program ignores `x`: if its model does not, it was exported with one" in capsys.readouterr().out


def test_inputs_that_no_request_can_hold_are_refused() -> None:
    program = torch.export.export(Product(), (ROWS, torch.zeros(4, 3, dtype=torch.complex64)))
    with pytest.raises(SourceError, match="the program takes `y` of complex numbers, allowed: real ones"):
        input_values("`--source`", program)


def test_init_names_a_type_that_no_spec_can_say() -> None:
    program = torch.export.export(Product(), (ROWS, ROWS.bfloat16()))
    with pytest.raises(InputError, match="the program takes `y` as bfloat16, allowed: `bool`, `float32`"):
        find_program_inputs(program, program_network(program), [], 4)


class Differences(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        return {"scores": a - b, "boxes": a + b}


def say_order(folder: Path, source: str, inputs: str, outputs: str) -> str:
    """What `package` says to these names of inputs and outputs, up to the export."""
    torch.export.save(torch.export.export(Differences(), (ROWS, ROWS)), folder / "p.pt2")
    (folder / "model.py").write_text(
        "from torch import nn\n\nclass Net(nn.Module):\n    def forward(self, a, b, c=None):\n"
        "        return {'scores': a - b, 'boxes': a + b}\n",
        encoding="utf-8",
    )
    named = "".join(f"    {name}: {{shape: [3]}}\n" for name in inputs.split())
    weights = "  weights: random\n" if ".py" in source else ""
    text = f"name: p\nmodel:\n  source: {source}\n{weights}  handler: tensor\n  batch_sizes: [4]\n"
    spec = parse_spec(f"{text}  inputs:\n{named}  outputs: [{outputs}]\n", folder / "spec.yaml")
    try:
        loaded = load_source(spec)
        output_ports(spec, build_graph(spec, loaded, "fp32"), examples(spec, loaded, 4))
    except SourceError as err:
        return err.message.partition("spec.yaml:")[2].partition(": ")[2]
    return "fits"


@pytest.mark.parametrize("source", ["./p.pt2", "./model.py:Net"])
@pytest.mark.parametrize(
    ("inputs", "outputs", "expected"),
    [
        ("a b", "scores, boxes", "fits"),
        ("left right", "differences, sums", "fits"),
        ("b a", "scores, boxes", "`model.inputs.b`: it would be passed to the model as `a`, allowed: the order of"),
        ("a b", "boxes, scores", "`model.outputs`: got `boxes` for the model's `scores`, allowed: its order, `scores`"),
    ],
    ids=["as the model", "other names", "inputs swapped", "outputs swapped"],
)
def test_names_of_the_model_in_another_order_are_refused(
    source: str, inputs: str, outputs: str, expected: str, tmp_path: Path
) -> None:
    assert say_order(tmp_path, source, inputs, outputs).startswith(expected)


def test_an_input_that_would_be_passed_as_an_argument_before_it_is_refused(tmp_path: Path) -> None:
    said = say_order(tmp_path, "./model.py:Net", "a c", "scores, boxes")
    assert said.startswith("`model.inputs.c`: it would be passed to the model as `b`, allowed: the order of")
