"""Stand-ins at the seams. `FakeContext` is TorchServe's own context, filled as `ts.service.Service.predict` fills it;
the models are real `torch.export` programs of a few parameters, exported once per process."""

import functools
import io
import json
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore", ResourceWarning)  # ts/__init__.py leaves its version file open
    from ts.context import Context, RequestProcessor

SIDE, RESIZE, CLASSES, TOP_K = 32, 36, 7, 3
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class FakeContext(Context):
    def __init__(self, model_dir: Path, gpu: int | None = None) -> None:
        super().__init__("tiny", str(model_dir), {}, 1, gpu, "0.12.0")

    def arrive(self, headers: Sequence[Mapping[str, Any]]) -> None:
        self.request_ids = {index: f"request-{index}" for index in range(len(headers))}
        self.request_processor = [RequestProcessor(dict(header)) for header in headers]


class Reply:
    """What a client would see of one answer."""

    def __init__(self, body: bytes, context: Context, index: int) -> None:
        self.body = body
        self.status, self.phrase = context.get_response_status(index)
        self.content_type = context.get_response_content_type(index)
        self._headers = {name.lower(): value for name, value in context.get_response_headers(index).items()}

    def header(self, name: str) -> str:
        return self._headers[name.lower()]

    def json(self) -> Any:
        return orjson.loads(self.body)


def ask(handler: Any, *bodies: Any, headers: Mapping[str, Any] | None = None) -> list[Reply]:
    """Sends the bodies as one batch, all with the same headers."""
    return ask_rows(handler, [{"body": body} for body in bodies], [headers or {}] * len(bodies))


def ask_rows(handler: Any, rows: Sequence[Any], headers: Sequence[Mapping[str, Any]]) -> list[Reply]:
    context = FakeContext(handler.directory)
    context.arrive(headers)
    answers = handler.handle(rows, context)
    assert isinstance(answers, list)
    assert len(answers) == len(rows)
    assert all(isinstance(answer, bytes) for answer in answers)
    return [Reply(answer, context, index) for index, answer in enumerate(answers)]


class TinyClassifier(torch.nn.Module):
    """An image model in the packager's form: uint8 pixels in, (top_probs, top_indices) out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(SIDE * SIDE * 3, CLASSES)

    def forward(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values = pixels.flatten(1).float() / 64
        probs, indices = torch.softmax(self.linear(values), -1).topk(TOP_K)
        return probs, indices


class TinySum(torch.nn.Module):
    """Two named inputs, two outputs."""

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return left + right, left.sum((1, 2)) / right.sum((1, 2))


class TinyDouble(torch.nn.Module):
    def forward(self, values: torch.Tensor) -> tuple[torch.Tensor]:
        return (values * 2,)


class TinyIdentity(torch.nn.Module):
    def forward(self, values: torch.Tensor) -> tuple[torch.Tensor]:
        return (values.view_as(values),)


IMAGE = {
    "handler": "image",
    "image": {
        "height": SIDE,
        "width": SIDE,
        "resize": RESIZE,
        "channels": 3,
        "mean": list(MEAN),
        "std": list(STD),
        "interpolation": "bilinear",
        "top_k": TOP_K,
        "max_pixels": 1_000_000,
    },
    "inputs": [{"name": "image", "shape": [SIDE, SIDE, 3], "dtype": "uint8", "min": None, "max": None}],
    "outputs": [
        {"name": "top_probs", "shape": [TOP_K], "dtype": "float32"},
        {"name": "top_indices", "shape": [TOP_K], "dtype": "int64"},
    ],
}
TWO_INPUTS = {
    "inputs": [{"name": name, "shape": [2, 3], "dtype": "float32"} for name in ("left", "right")],
    "outputs": [
        {"name": "sum", "shape": [2, 3], "dtype": "float32"},
        {"name": "ratio", "shape": [], "dtype": "float32"},
    ],
}
ONE_INPUT = {
    "inputs": [{"name": "values", "shape": [2, 3], "dtype": "float32", "min": -100, "max": 100}],
    "outputs": [{"name": "doubled", "shape": [2, 3], "dtype": "float32"}],
}
EAGER = {
    "schema": "marina.package/1",
    "name": "tiny",
    "version": "1.0",
    "handler": "tensor",
    "precision": "fp32",
    "compile": "export",
    "device": "cpu",
    "threads": 1,
    "image": None,
    "labels": None,
    "max_request_bytes": 4_000_000,
    "sample": None,
    "key": {},
    "artifacts": [],
    "program": "program.pt2",
    "cache": None,
    "batch_sizes": [1, 4],
}


@functools.cache
def exported(model: type[torch.nn.Module], shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype) -> bytes:
    """A program with a dynamic batch dimension, as the packager writes it: without the pickle of example inputs."""
    batch = torch.export.Dim("batch", min=1, max=64)
    inputs = tuple(torch.ones(2, *shape, dtype=dtype) for shape in shapes)
    dynamic = tuple({0: batch} for _ in shapes)
    program = torch.export.export(model().eval(), inputs, dynamic_shapes=dynamic)
    saved = io.BytesIO()
    torch.export.save(program, saved)
    return rewrite(saved.getvalue(), {"data/sample_inputs/model.pt": b""})


def rewrite(program: bytes, changes: Mapping[str, bytes | str]) -> bytes:
    """The archive with some members changed or added."""
    with zipfile.ZipFile(io.BytesIO(program)) as archive:
        members: dict[str, bytes | str] = {name: archive.read(name) for name in archive.namelist()}
    root = next(iter(members)).partition("/")[0]
    changed = io.BytesIO()
    with zipfile.ZipFile(changed, "w") as archive:
        for name, data in {**members, **{f"{root}/{name}": data for name, data in changes.items()}}.items():
            archive.writestr(name, data)
    return changed.getvalue()


def write_package(directory: Path, model: type[torch.nn.Module], *changes: Mapping[str, Any]) -> Path:
    """A package folder with the model's program and a record: `EAGER`, changed from left to right."""
    record = functools.reduce(lambda merged, change: {**merged, **change}, changes, EAGER)
    shapes = tuple(tuple(item["shape"]) for item in record["inputs"])
    dtype = getattr(torch, record["inputs"][0]["dtype"])
    (directory / "program.pt2").write_bytes(exported(model, shapes, dtype))
    (directory / "marina.json").write_text(json.dumps(record))
    return directory


def start(handler: Any, directory: Path) -> Any:
    """A handler as TorchServe has it when the worker is ready."""
    handler.initialize(FakeContext(directory))
    return handler
