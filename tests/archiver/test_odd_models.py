"""Models that do not fit the mould: they are packaged as they are, or refused in one sentence that says why."""

import os
import tracemalloc
import zipfile
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from specs import make_spec

from marina.archiver.archive import write_archive
from marina.archiver.package import package
from marina.config.errors import MarinaError
from marina.config.progress import Progress
from marina.config.record import Package

MODEL = """
import os
import signal
import sys

import torch
from torch import nn

class Changing(nn.Module):
    def forward(self, x):
        print("a shape:", x.shape)
        x -= 0.5
        return x * 2

class Same(nn.Module):
    def forward(self, x):
        return x

class Empty(nn.Module):
    def forward(self, x):
        return None

class Hollow(nn.Module):
    def forward(self, x):
        return x[:, :0]

class Number(nn.Module):
    def forward(self, x):
        return x, 1.5

class Complex(nn.Module):
    def forward(self, x):
        return torch.fft.fft(x)

class Turned(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("turn", torch.ones(3, dtype=torch.complex64))

    def forward(self, x):
        return torch.view_as_real(x * self.turn)

class Squeezed(nn.Module):
    def forward(self, x):
        return x.sum(1).squeeze()

class Fours(nn.Module):
    def forward(self, x):
        return x.view(4, 3)

class Zeros(nn.Module):
    def forward(self, x):
        return x.relu().to_sparse()

def scripted():
    return torch.jit.script(nn.Linear(3, 3))

class Logarithm(nn.Module):
    def forward(self, x):
        return torch.log(x)

class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("kept", torch.eye(3).to_sparse())

    def forward(self, x):
        return torch.sparse.mm(self.kept, x.t()).t()

class Picking(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.pairs = nn.Embedding(100, 4), nn.Embedding(10, 4)

    def forward(self, x, y, z):
        picked = self.table(x.long().reshape(-1, 3)).sum(1) + self.pairs.weight.index_select(0, y[:, 0])
        return picked + torch.nn.functional.one_hot(z, 4).sum(1)

class Killed(Same):
    def __init__(self):
        super().__init__()
        if sys.argv[0].endswith("rehearse.py"):
            os.kill(os.getpid(), signal.SIGKILL)

class Strict(nn.Module):
    def forward(self, x):
        if x.max() > 0.999:
            raise ValueError("too large")
        return x


class Positive(nn.Module):
    def forward(self, x):
        return x.gt(0.5).nonzero()[None, :, 1]


class Reading(Same):
    def __init__(self):
        super().__init__()
        self.size = os.stat(os.path.join(os.path.dirname(__file__), "size.txt")).st_size
"""
ODD: dict[str, Any] = {
    "model.handler": "tensor",
    "model.inputs": {"x": {"shape": [3]}},
    "model.compile": "eager",
    "model.batch_sizes": [1, 4],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model.py").write_text(MODEL, encoding="utf-8")
    (tmp_path / "size.txt").write_text("", encoding="utf-8")
    return tmp_path


def packaged(folder: Path, name: str, changes: dict[str, Any] | None = None) -> Package:
    spec = make_spec(ODD | {"model.source": f"./model.py:{name}"} | (changes or {}), folder / "spec.yaml")
    return package(spec, folder / "build", progress=Progress(quiet=True))


def message(folder: Path, name: str, changes: dict[str, Any] | None = None) -> str:
    with pytest.raises(MarinaError) as raised:
        packaged(folder, name, changes)
    assert {file.name for file in (folder / "build").glob("*")} <= {"worker.log"}
    return str(raised.value).replace(str(folder), "DIR")


@pytest.mark.slow
def test_a_model_that_fails_on_some_inputs_is_refused_with_its_own_error(folder: Path) -> None:
    text = message(folder, "Strict", {"model.inputs": {"x": {"shape": [16], "min": 0}}, "model.batch_sizes": [1]})
    assert "the model fails on some inputs: ValueError: too large\n\nhint: limit them to what it takes" in text


def test_an_output_whose_size_depends_on_the_values_is_refused(folder: Path) -> None:
    text = message(folder, "Positive", {"model.batch_sizes": [1]})
    assert "its output `output` is [" in text
    assert "for another, allowed: one size for all values of the inputs\n\nhint: pad it in `forward`" in text


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Empty", "its `forward` returned nothing, allowed: tensors with one row per input row"),
        ("Hollow", "got `output` [0], allowed: at least one output with values"),
        ("Number", "got an output float for 4 rows, allowed: tensors with one row per input row"),
        (
            "Complex",
            "got an output of complex numbers, which `tensor` cannot answer\n\nhint: return `torch.view_as_real(…)`, "
            "or write a handler of your own",
        ),
        (
            "Squeezed",
            "got an output () for 1 rows, allowed: tensors with one row per input row\n\n"
            "hint: `squeeze(-1)` if it is `squeeze()`, which also removes the rows if there is only one",
        ),
        (
            "Fours",
            "the model fails on inputs (1, 3) float32: RuntimeError: shape '[4, 3]' is invalid for input of size 3"
            "\n\nhint: compare `model.image` or `model.inputs` with what the model takes",
        ),
        ("Zeros", "got an output (4, 3) sparse for 4 rows, allowed: tensors with one row per input row"),
        (
            "scripted",
            "`./model.py:scripted` returned TorchScript, which cannot be exported, allowed: the network's own Python "
            "code\n\nhint: return the network that was scripted; `torch.jit.load(FILE).state_dict()` has its weights",
        ),
        (
            "Logarithm",
            "the model answers some generated inputs with NaN\n\nhint: give the `min` and `max` of `model.inputs`, or "
            "a `calibration` with real inputs",
        ),
        (
            "Sparse",
            "its state `kept` is a sparse or quantised tensor, allowed: plain tensors\n\nhint: keep it out of "
            "`state_dict`, or use `compile: export`",
        ),
    ],
)
def test_what_cannot_be_served_is_named(name: str, expected: str, folder: Path) -> None:
    assert message(folder, name) == f"DIR/spec.yaml: `model.source`: {expected}"


def test_complex_weights_have_no_lower_precision(folder: Path) -> None:
    said = message(folder, "Turned", {"model.precision": "bf16"})
    assert said.endswith("got `bf16`, but `turn` of `./model.py:Turned` is complex, allowed: `fp32`")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Killed", "its process was ended by SIGKILL\n\nhint: it may need more memory than is free"),
        ("Reading", "hint: keep what it reads in a buffer, or use another `compile`, which needs no source in a pod"),
    ],
)
def test_a_worker_that_does_not_start_says_what_ended_it(name: str, expected: str, folder: Path) -> None:
    said = message(folder, name)
    assert said.startswith("DIR/spec.yaml: the packaged model does not start in a worker: ")
    assert said.endswith(expected)
    printed = (folder / "build/worker.log").read_text(encoding="utf-8")
    assert ("Traceback (most recent call last)" in printed) == (name == "Reading")
    packaged(folder, "Same")
    assert not (folder / "build/worker.log").exists()


@pytest.mark.slow
def test_without_a_calibration_rows_are_made_up_for_the_largest_batch(folder: Path) -> None:
    record = packaged(folder, "Same", {"model.batch_sizes": [1, 200]}).record
    assert (record.batch_sizes, record.agreement.count) == ((1, 200), 200)


def test_fewer_calibration_rows_than_a_batch_are_refused(folder: Path) -> None:
    (folder / "rows").mkdir()
    np.save(folder / "rows/three.npy", np.ones((3, 3), np.float32))
    text = "DIR/spec.yaml: `model.calibration`: `./rows` holds 3 rows, allowed: 4 or more, the largest of"
    assert message(folder, "Same", {"model.calibration": "./rows"}) == f"{text} `model.batch_sizes`"


PICKING: dict[str, Any] = {"model.compile": "export", "model.inputs": {
    "x": {"shape": [3], "dtype": "int32"}, "y": {"shape": [1], "dtype": "int64"},
    "z": {"shape": [2], "dtype": "int64", "max": 2},
}}  # fmt: skip


@pytest.mark.slow
def test_an_input_that_picks_rows_of_a_table_allows_only_rows_that_exist(folder: Path) -> None:
    x, y, z = packaged(folder, "Picking", PICKING).record.inputs
    assert [(port.min, port.max) for port in (x, y, z)] == [(0, 99), (0, 9), (0, 2)]


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "value"), [("max", 100), ("min", -1)])
def test_a_limit_beyond_the_rows_of_a_table_is_refused(limit: str, value: int, folder: Path) -> None:
    (folder / "rows").mkdir()
    np.savez(folder / "rows/four.npz", x=np.zeros((4, 3), np.int32), y=np.zeros((4, 1), int), z=np.zeros((4, 2), int))
    inputs = PICKING["model.inputs"] | {"x": {"shape": [3], "dtype": "int32", limit: value}}
    text = message(folder, "Picking", PICKING | {"model.inputs": inputs, "model.calibration": "./rows"})
    assert "picks rows of a table by it, allowed: 0 to 99" in text


@pytest.mark.slow
def test_a_model_may_change_its_inputs_and_print(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert packaged(folder, "Changing").record.agreement.agreement == 1
    written = capsys.readouterr()
    assert written.out == ""
    assert "a shape:" in written.err


@pytest.mark.slow
@pytest.mark.parametrize(
    "limits",
    [
        {"min": 5.0},
        {"max": -5.0},
        {"dtype": "int64", "min": 10},
        {"dtype": "int64", "max": -5},
        {"dtype": "uint8", "max": 300},
    ],
)
def test_generated_inputs_keep_to_the_only_limit(limits: dict[str, Any], folder: Path) -> None:
    assert packaged(folder, "Same", {"model.inputs": {"x": {"shape": [3]} | limits}}).record.agreement.agreement == 1


def save_damaged(file: Path) -> None:
    np.savez(file, x=np.ones((400, 3), np.float32))
    data = bytearray(file.read_bytes())
    data[300] ^= 255
    file.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "write", "expected"),
    [
        ("a.npy", lambda file: file.write_bytes(b""), "No data left in file"),
        ("a.npz", lambda file: file.write_bytes(b"PK\x03\x04"), "File is not a zip file"),
        (
            "a.npz",
            lambda file: np.savez(file, x=np.array([{}])),
            "Object arrays cannot be loaded when allow_pickle=False",
        ),
        ("a.npz", save_damaged, "Bad CRC-32 for file 'x.npy'"),
    ],
)
def test_calibration_that_cannot_be_read_is_named(name: str, write: Any, expected: str, folder: Path) -> None:
    (folder / "inputs").mkdir()
    write(folder / "inputs" / name)
    expected = f"DIR/spec.yaml: `model.calibration`: `DIR/inputs/{name}`: cannot be read: {expected}"
    assert message(folder, "Same", {"model.calibration": "./inputs"}) == expected


@pytest.mark.slow
def test_a_full_disk_leaves_nothing(folder: Path) -> None:
    (folder / "build").mkdir()
    (folder / f"build/.model.mar.{os.getpid()}.partial").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device"):
        packaged(folder, "Same")
    assert list((folder / "build").iterdir()) == []


EMPTY: Any = SimpleNamespace(json_text=lambda: "{}")


def staged(folder: Path, content: bytes) -> Path:
    folder.mkdir()
    (folder / "weights").write_bytes(content)
    return folder


def test_two_that_write_the_same_mar_at_once_leave_one_that_is_whole(tmp_path: Path) -> None:
    fork = get_context("fork")
    folders = [staged(tmp_path / name, name.encode() * 40_000_000) for name in ("a", "b")]
    mar = tmp_path / "model.mar"
    writers = [fork.Process(target=write_archive, args=(folder, EMPTY, mar)) for folder in folders]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0]
    with zipfile.ZipFile(mar) as archive:
        assert archive.testzip() is None
    assert list(tmp_path.glob(".*")) == []


def test_weights_are_packed_without_all_of_them_in_memory(tmp_path: Path) -> None:
    folder = staged(tmp_path / "staged", b"")
    os.truncate(folder / "weights", 50_000_000)
    tracemalloc.start()
    write_archive(folder, EMPTY, tmp_path / "model.mar")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 20_000_000
    with zipfile.ZipFile(tmp_path / "model.mar") as archive:
        assert archive.getinfo("weights").file_size == 50_000_000
