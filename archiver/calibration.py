"""The inputs that a model is calibrated and checked on: the spec's calibration folder, or seeded random inputs."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from marina.archiver.encoders import read_texts
from marina.archiver.graph import examples
from marina.archiver.sources import Source
from marina.config.errors import SourceError, listed, reason_of
from marina.config.mar import READ_ERRORS
from marina.config.record import Port
from marina.config.spec import Spec
from marina.handlers.pictures import decode_image
from marina.handlers.record import ImageSpec
from marina.handlers.validation import RequestError

IMAGE_SUFFIXES = (".jpeg", ".jpg", ".png", ".webp")
GENERATED_ROWS = 64
# More rows would change neither the calibrated ranges nor the agreement, and packaging would take minutes.
MOST_ROWS = 512

Rows = tuple[torch.Tensor, ...]


def calibration_inputs(spec: Spec, source: Source, image: ImageSpec | None) -> Rows:
    """One tensor per input with a row per calibration item, or seeded random rows if the spec has no calibration."""
    if spec.model.calibration is None:
        return examples(spec, source, max(GENERATED_ROWS, *spec.model.batch_sizes))
    folder = spec.path(spec.model.calibration)
    if not folder.is_dir():
        raise SourceError(f"{spec.file}: `model.calibration`: no such folder: `{folder}`")
    rows: list[tuple[np.ndarray, ...]] = []
    for file in sorted(folder.iterdir()):
        if file.suffix.lower() == ".txt" and spec.model.encodes:
            rows += read_texts(spec, file, source.inputs)[: MOST_ROWS - len(rows)]
        elif file.suffix.lower() in (*IMAGE_SUFFIXES, ".npy", ".npz") and len(rows) < MOST_ROWS:
            rows += list(_rows_of(spec, source, image, file))[: MOST_ROWS - len(rows)]
    if not rows:
        allowed = (
            "`.txt`" if spec.model.encodes else listed((*IMAGE_SUFFIXES, ".npy", ".npz") if image else (".npy", ".npz"))
        )
        raise SourceError(f"{spec.file}: `model.calibration`: nothing to read in `{folder}`, allowed: {allowed}")
    return tuple(torch.from_numpy(np.stack(column)).to(spec.serving.device) for column in zip(*rows, strict=True))


def batches(inputs: Rows, size: int) -> Iterator[tuple[Rows, int]]:
    """Cuts the inputs into batches of exactly `size` rows, each with its number of real rows; the last batch is filled
    up with copies of its last row."""
    for begin in range(0, len(inputs[0]), size):
        cut = tuple(value[begin : begin + size] for value in inputs)
        real = len(cut[0])
        yield tuple(torch.cat([value, value[-1:].expand(size - real, *value.shape[1:])]) for value in cut), real


def _rows_of(spec: Spec, source: Source, image: ImageSpec | None, file: Path) -> Iterator[tuple[np.ndarray, ...]]:
    where = f"{spec.file}: `model.calibration`: `{file}`"
    try:
        if file.suffix.lower() in IMAGE_SUFFIXES:
            if image is None:
                raise SourceError(f"{where}: is a picture, allowed for `{spec.model.handler}`: `.npy`, `.npz`")
            yield (np.ascontiguousarray(decode_image(file.read_bytes(), image)),)
            return
        loaded = np.load(file, allow_pickle=False)
        arrays = {source.inputs[0].name: loaded} if isinstance(loaded, np.ndarray) else dict(loaded)
    except (*READ_ERRORS, RequestError) as err:
        raise SourceError(f"{where}: cannot be read: {reason_of(err)}") from err
    missing = [port.name for port in source.inputs if port.name not in arrays]
    if missing:
        raise SourceError(f"{where}: has no {listed(missing)}, found: {listed(arrays)}")
    columns = [_column(where, port, arrays[port.name]) for port in source.inputs]
    if len({len(column) for column in columns}) > 1:
        raise SourceError(f"{where}: its arrays have different numbers of rows")
    yield from zip(*columns, strict=True)


def _column(where: str, port: Port, array: np.ndarray) -> np.ndarray:
    """The rows of one input, from an array that holds one row or many."""
    if array.shape == port.shape:
        array = array[None]
    if array.shape[1:] != port.shape or str(array.dtype) != port.dtype:
        raise SourceError(
            f"{where}: `{port.name}` is {array.dtype} {list(array.shape)}, allowed: {port.dtype} {list(port.shape)} "
            "or rows of it"
        )
    return array
