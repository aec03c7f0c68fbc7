"""Models whose code is not the same for every size or type: they are exported, or the error says what stops that."""

from pathlib import Path
from typing import Any

import pytest
from specs import make_spec

from archiver.package import package
from config.errors import SourceError
from config.progress import Progress
from config.record import Package

MODEL = """
import torch
from torch import nn

class Lower(nn.Module):
    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return x @ torch.eye(3)

class Counting(nn.Module):
    def forward(self, x):
        return torch.stack([x[row] for row in range(len(x))])

class Pairs(nn.Module):
    def forward(self, x, mask):
        x = x * mask
        x = x if x.shape[1] % 2 == 0 else nn.functional.pad(x, (0, 1))
        return x.view(len(x), -1, 2).sum((1, 2))

class Places(nn.Module):
    def forward(self, x, mask):
        return (x * mask + torch.zeros(16)).sum(1)
"""
EXPORTED: dict[str, Any] = {
    "model.handler": "tensor",
    "model.inputs": {"x": {"shape": [3]}},
    "model.compile": "export",
    "model.batch_sizes": [1, 4],
}
VARYING: dict[str, Any] = {"model.inputs": {"x": {"shape": [{"max": 16}]}, "mask": {"mask_of": "x"}}}


def packaged(folder: Path, name: str, changes: dict[str, Any]) -> Package:
    (folder / "model.py").write_text(MODEL, encoding="utf-8")
    spec = make_spec(EXPORTED | {"model.source": f"./model.py:{name}"} | changes, folder / "spec.yaml")
    return package(spec, folder / "build", progress=Progress(quiet=True))


def message(folder: Path, name: str, changes: dict[str, Any]) -> str:
    with pytest.raises(SourceError) as raised:
        packaged(folder, name, changes)
    return str(raised.value).replace(str(folder), "DIR")


def test_a_model_that_does_not_take_every_length_is_named(tmp_path: Path) -> None:
    said = message(tmp_path, "Places", VARYING)
    assert said.startswith("DIR/spec.yaml: `model.source`: the model fails on inputs (4, 1")
    assert said.endswith("hint: requests may have any length from 1 to 16: pad in `forward`, or use a fixed `shape`")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        (
            "Counting",
            {},
            "the model's code fixes the batch size\n\nhint: `batch_sizes: [4]` packages that one",
        ),
        (
            "Pairs",
            VARYING,
            "the model's code does not treat all lengths alike\n\nhint: `buckets: [16]`, to which every request is "
            "padded; or compile: eager",
        ),
    ],
)
def test_code_that_cannot_be_exported_for_every_size_says_for_which(
    name: str, changes: dict[str, Any], expected: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert message(tmp_path, name, changes).endswith(f"cannot be exported: {expected}")
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.slow
def test_a_model_that_computes_in_lower_precision_by_itself_is_exported(tmp_path: Path) -> None:
    assert packaged(tmp_path, "Lower", {}).record.agreement.agreement == 1
