"""Loads the model as the record says: an AOTInductor package per batch size, a program to compile here, a program to
run as exported, or source code.

Nothing falls back silently: a package that does not fit the machine is an error, unless the record allows
`on_mismatch: jit`, and then the log and `inference_artifact_info` say so."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from marina.handlers.machine import machine_mismatches
from marina.handlers.networks import graph_from_source
from marina.handlers.program import RunBatch, compile_program, load_program, use_cache, without_grad
from marina.handlers.record import PackedRecord, RecordError
from marina.handlers.scratch import unpacking

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadedArtifact:
    """A model that is ready to run: a function from batched tensors to a flat tuple of batched tensors, for certain
    batch sizes."""

    kind: str
    """How the model really runs, which may differ from the record's `compile`: `aot`, `jit`, `export` or `eager`."""
    batch_sizes: tuple[int, ...]
    device: torch.device
    run_batch: RunBatch

    def run(self, inputs: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """`inputs` must have exactly the declared shapes and types: compiled code checks neither, and reads past a
        short buffer."""
        return tuple(self.run_batch(inputs))


def mismatch_error(differing: Sequence[str]) -> RecordError:
    """The error for a machine that the compiled model does not fit."""
    return RecordError(
        f"the compiled model does not fit this machine: {'; '.join(differing)}: package on a machine like this one"
    )


def pick_device(record: PackedRecord, gpu_id: int | None) -> torch.device:
    if record.device == "cpu":
        return torch.device("cpu")
    if gpu_id is None or not torch.cuda.is_available():
        raise RecordError(
            "`serving.device`: got `cuda`, but TorchServe gave this worker no GPU: "
            "check `number_of_gpu` and the pod's resources"
        )
    torch.cuda.set_device(gpu_id)
    return torch.device("cuda", gpu_id)


def load_artifact(record: PackedRecord, directory: Path, device: torch.device) -> LoadedArtifact:
    """Raises `RecordError` if the package does not fit the machine."""
    kind = record.compile
    if kind == "aot" and (differing := machine_mismatches(record.key, device)):
        raise mismatch_error(differing)
    if kind == "aot":
        return _load_aot(record, directory, device)
    if kind == "eager":
        return LoadedArtifact(
            kind, record.batch_sizes, device, without_grad(graph_from_source(record, directory, device))
        )
    if record.program is None:
        raise RecordError(f"`program`: missing, but `{kind}` needs it: package again")
    module = load_program(directory / record.program)
    if kind == "export":
        return LoadedArtifact(kind, record.batch_sizes, device, without_grad(module))
    if record.cache is not None:
        use_cache(directory / record.cache)
    return LoadedArtifact(
        kind, record.batch_sizes, device, compile_program(module, device, _dynamic_dimensions(record))
    )


def _load_aot(record: PackedRecord, directory: Path, device: torch.device) -> LoadedArtifact:
    if not record.artifacts:
        raise RecordError("`artifacts`: empty, but `compile` is `aot`: package again")
    with unpacking():
        loaders = {(item.batch, item.length): _load_package(directory / item.file, device) for item in record.artifacts}
    sizes = tuple(sorted({batch for batch, _ in loaders}))
    return LoadedArtifact("aot", sizes, device, _by_shape(loaders, _length_at(record)))


def _varying_dimensions(record: PackedRecord) -> list[tuple[int, int]]:
    """The inputs with a dimension that varies: the position of each among the model's arguments, which a mask shifts,
    and the position of that dimension in its batched tensor."""
    mask = record.lengths.mask if record.lengths else None
    return [
        (index + (mask is not None and mask <= index), spec.varies + 1)
        for index, spec in enumerate(record.inputs)
        if spec.varies is not None
    ]


def _dynamic_dimensions(record: PackedRecord) -> list[tuple[int, int]]:
    """The dimensions that the compiler must treat as dynamic, as argument and dimension, including the mask's; none
    unless the record says `dynamic`."""
    if record.lengths is None or not record.lengths.dynamic:
        return []
    mask = record.lengths.mask
    return _varying_dimensions(record) + ([] if mask is None else [(mask, 1)])


def _length_at(record: PackedRecord) -> tuple[int, int] | None:
    """The argument and dimension from which to read the length that selects an artifact; None if there is one artifact
    for all lengths."""
    if record.lengths is None or record.lengths.dynamic:
        return None
    return _varying_dimensions(record)[0]


def _load_package(path: Path, device: torch.device) -> RunBatch:
    if not path.is_file():
        raise RecordError(f"`artifacts`: `{path.name}` is not in the package")
    index = -1 if device.type == "cpu" else device.index
    # torch._inductor.aoti_load_package does the same, but imports the whole compiler, which adds a second to each cold
    # start. A worker runs one batch at a time, so it needs one runner and no locking.
    loader = torch._C._aoti.AOTIModelPackageLoader(str(path), "model", True, 1, index)
    run: RunBatch = loader.run
    return run


def _by_shape(loaders: Mapping[tuple[int, int | None], RunBatch], length_at: tuple[int, int] | None) -> RunBatch:
    def run(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        length = None if length_at is None else inputs[length_at[0]].shape[length_at[1]]
        return list(loaders[inputs[0].shape[0], length](inputs))

    return run
