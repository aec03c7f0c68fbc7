"""What a model takes, found by loading it: the shape of its input, and that it works with it."""

from __future__ import annotations

import argparse
import io
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from config.errors import InputError, SourceError
from marina.starting.init_spec import Start, spec_text

_TEMPLATES = {"image": (3, 32, 32), "tensor": (4,)}
_SHAPE = re.compile(r"\d+(,\d+)*")
# Beyond this, an array is no longer something to read and edit.
_READABLE = 1000


def find_start(name: str, options: argparse.Namespace) -> Start:
    """What to write into the spec, for the source that was asked for or for a model to replace."""
    handler = options.handler
    if options.source is None:
        kind = "tensor" if handler in ("tensor", "own") else "image"
        shape = _TEMPLATES[kind]
        inputs = {"x": (shape, "float32")}
        return Start("./model.py:build", handler or kind, shape, picture=kind == "image", inputs=inputs)
    source, from_here = seen_from(name, options.source)
    if source.startswith("torchvision:"):
        return _of_torchvision(source, handler, loaded(name, Start(source, "image", (3, 224, 224), picture=True)))
    probe = Start(from_here, "tensor", (1,), picture=False, inputs={"x": ((1,), "float32")})
    if source.endswith(".pt2"):
        return _of_program(source, handler, loaded(name, replace(probe, inputs=None), here=True))
    found = loaded(name, probe, here=True)
    shape = _given(options.shape) if options.shape else _guessed(found.network, options.source)
    picture = len(shape) == 3 and shape[0] in (1, 3) and handler != "tensor"
    if handler == "image" and not picture:
        text = f"`--handler`: got `image`, but the model takes {list(shape)}, allowed: 1 or 3 channels, rows, columns"
        raise InputError(text, hint=f"marina init --source {options.source} --handler image --shape 3,224,224 {name}")
    start = Start(source, handler or ("image" if picture else "tensor"), shape, picture)
    return replace(start, inputs={"x": (shape, "float32")}, top_k=_classes(found.network, shape) if picture else 5)


def seen_from(name: str, source: str) -> tuple[str, str]:
    """A source as the spec in the new folder names it, and as it is named here."""
    if source.startswith("torchvision:"):
        return source, source
    path, colon, factory = source.partition(":")
    inside = Path(os.path.relpath(path, name)).as_posix()
    here = Path(os.path.relpath(path)).as_posix()
    return tuple(f"{each if each.startswith('.') else f'./{each}'}{colon}{factory}" for each in (inside, here))  # type: ignore[return-value]


def loaded(name: str, start: Start, *, here: bool = False) -> Any:
    """The source as the packager loads it."""
    from archiver.sources import load_source
    from config.load import parse_spec

    file = Path("spec.yaml") if here else Path(name, "spec.yaml")
    return load_source(parse_spec(spec_text(name, start, "sample.json"), file, files=False))


def sample_of(start: Start) -> tuple[str, bytes]:
    """The name and the bytes of a body that the model takes."""
    import numpy as np

    if start.picture and start.handler != "tensor":
        return "samples/sample.png", _drawn(start.shape)
    values = {key: _filled(shape, dtype) for key, (shape, dtype) in (start.inputs or {}).items()}
    first = next(iter(values.values()))
    if len(values) == 1 and first.size > _READABLE and start.handler == "tensor":
        return "samples/sample.npy", _saved(first)
    # Rounded once more: 0.637 as float32 is 0.6370000243.
    listed = {key: np.round(value.astype(float), 3).tolist() if value.dtype.kind == "f" else value.tolist()
              for key, value in values.items()}  # fmt: skip
    return "samples/sample.json", json.dumps(listed).encode() + b"\n"


def check_works(spec: Path) -> None:
    """That the spec is right and its model answers inputs of the shape in it; MarinaError otherwise."""
    from archiver.graph import build_graph, examples, output_ports
    from archiver.sources import load_source
    from config.load import load_spec

    read = load_spec(spec)
    source = load_source(read)
    rows = source.only_batch or max(read.model.batch_sizes)
    try:
        output_ports(read, build_graph(read, source, "fp32"), examples(read, source, rows))
    except SourceError as err:
        raise SourceError(err.message, hint="--shape with what the model takes, such as `--shape 3,64,64`") from err


def _of_torchvision(source: str, handler: str | None, found: Any) -> Start:
    if found.image is None:
        raise InputError(f"`--source`: `{source}` is no model that tells images apart", hint="--source ./file.py:build")
    shape = (3, found.image.height, found.image.width)
    return Start(source, handler or "image", shape, picture=True, inputs={"x": (shape, "float32")})


def _of_program(source: str, handler: str | None, found: Any) -> Start:
    shape = found.inputs[0].shape
    picture = handler == "image" and len(shape) == 3
    inputs = {port.name: (port.shape, port.dtype) for port in found.inputs}
    return Start(source, handler or "tensor", shape, picture, inputs=inputs, only_batch=found.only_batch)


def _given(text: str) -> tuple[int, ...]:
    if not _SHAPE.fullmatch(text) or "0" in text.split(","):
        raise InputError(f"`--shape`: got `{text}`, allowed: whole numbers such as `3,224,224` or `4`")
    return tuple(map(int, text.split(",")))


def _guessed(network: Any, source: str) -> tuple[int, ...]:
    """From the first layer that says what it takes; whether that holds is tried afterwards."""
    from torch import nn

    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            return (layer.in_channels, 224, 224)
        if isinstance(layer, nn.Linear):
            return (layer.in_features,)
    raise InputError(f"`--shape`: missing: `{source}` does not show what it takes", hint="--shape 3,224,224")


def _classes(network: Any, shape: tuple[int, ...]) -> int:
    """How many classes an answer can name, at most five."""
    import torch

    try:
        with torch.no_grad():
            return min(5, int(network(torch.zeros(1, *shape)).shape[-1]))
    except Exception as err:
        text = f"`--shape`: the model fails on {list(shape)}: {type(err).__name__}: {err}"
        raise SourceError(text, hint="--shape with what the model takes, such as `--shape 3,64,64`") from err


def _filled(shape: tuple[int, ...], dtype: str) -> Any:
    import numpy as np

    generator = np.random.default_rng(0)
    whole = not dtype.startswith(("float", "bfloat"))
    return generator.integers(0, 2, shape).astype(dtype) if whole else generator.random(shape, np.float32).round(3)


def _drawn(shape: tuple[int, ...]) -> bytes:
    import numpy as np
    from PIL import Image

    channels, height, width = shape
    down, across = np.mgrid[0:height, 0:width]
    planes = [across * 255 // max(1, width - 1), down * 255 // max(1, height - 1), (across ^ down) % 256]
    pixels = np.stack(planes[:channels], axis=-1).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels[..., 0] if channels == 1 else pixels).save(buffer, "PNG")
    return buffer.getvalue()


def _saved(array: Any) -> bytes:
    import numpy as np

    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()
