"""Loads a `torch.export` program from disk without unpickling, and runs it compiled here or as exported.

`torch.export.load` unpickles tensor subclasses, script objects and, as a fallback, sample inputs. A program of plain
tensors needs none of that, so a file that contains any is refused before torch sees it."""

import json
import logging
import os
import re
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from marina.handlers.memory import without_collecting
from marina.handlers.record import RecordError

logger = logging.getLogger(__name__)

# A file in the cache folder of a package for CUDA.
ARTIFACTS = "artifacts.bin"

RunBatch = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]

_PLAIN_ENTRY = re.compile(
    r"(data/weights/(weight_\d+|model_weights_config\.json)"
    r"|data/constants/(tensor_\d+|model_constants_config\.json)"
    r"|data/sample_inputs/model\.pt|models/model\.json|archive_format|archive_version|byteorder|\.data/\w+)"
)


def load_program(path: Path) -> torch.nn.Module:
    """Loads the program's module on the device that it was exported for; raises `RecordError` for a file that would
    need unpickling."""
    _refuse_pickles(path)
    try:
        with without_collecting():
            # Quantised programs need operators that only this import registers.
            import torch.ao.quantization.fx._decomposed

            return torch.export.load(path).module()
    except (RuntimeError, ValueError, KeyError, AssertionError) as err:
        raise RecordError(f"{path.name}: this torch {torch.__version__} cannot load the program: {err}") from err


def compile_program(module: torch.nn.Module, device: torch.device, dynamic: Sequence[tuple[int, int]] = ()) -> RunBatch:
    """Compiles a program with `torch.compile`, separately for each shape, except for the `dynamic` dimensions, each
    given as the position of an argument and of its dimension. The packager must fill its compile cache through this
    function too."""
    with without_collecting():
        # Otherwise the first call imports it.
        import torch._inductor.compile_fx
        from torch._inductor import config

    # Only frozen weights are packed for oneDNN, and only frozen int8 convolutions are fused. On CUDA freezing gains
    # little, and it would keep graphs out of the compile cache, although Triton compiles for long.
    config.freezing = device.type == "cpu"
    # A precompiled header would be compiled on every machine, even if all kernels are in the cache, and needs the
    # program `openssl`.
    config.cpp_cache_precompile_headers = False
    # fullgraph: beyond torch's limit on recompilations, a new shape is an error instead of silently running eagerly.
    compiled: RunBatch = without_grad(torch.compile(module, dynamic=False, fullgraph=True))
    if not dynamic:
        return compiled

    def run(inputs: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        for place, dimension in dynamic:
            torch._dynamo.mark_dynamic(inputs[place], dimension)
        return compiled(inputs)

    return run


def use_cache(folder: Path) -> None:
    """Makes this folder, filled by the packager, the cache of compiled kernels. For CUDA it also holds a file from
    `torch.compiler.save_cache_artifacts`. A cache that torch rejects costs time, not correctness."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    saved = folder / ARTIFACTS
    if saved.is_file() and torch.compiler.load_cache_artifacts(saved.read_bytes()) is None:
        logger.warning("the compile cache was rejected by torch %s: compiling without it", torch.__version__)


def without_grad(function: Callable[..., Sequence[torch.Tensor]]) -> RunBatch:
    """Wraps a function of tensors, so that it takes a list of them and computes no gradients."""

    def run(inputs: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        with torch.no_grad():
            return function(*inputs)

    return run


def _refuse_pickles(path: Path) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            entries = {name.partition("/")[2]: name for name in archive.namelist()}
            foreign = sorted(entry for entry in entries if not _PLAIN_ENTRY.fullmatch(entry))
            if foreign or "models/model.json" not in entries:
                raise RecordError(f"{path.name}: not a program of plain tensors: unexpected entries {foreign[:3]}")
            for entry in ("data/weights/model_weights_config.json", "data/constants/model_constants_config.json"):
                payloads = json.loads(archive.read(entries[entry]))["config"]
                if pickled := sorted(name for name, meta in payloads.items() if meta["use_pickle"]):
                    raise RecordError(f"{path.name}: tensors stored as pickles: {pickled[:3]}")
            # The packager empties this file, and torch then sees a program without example inputs.
            if archive.read(entries["data/sample_inputs/model.pt"]):
                raise RecordError(f"{path.name}: has pickled sample inputs")
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, zipfile.BadZipFile) as err:
        raise RecordError(f"{path.name}: not a readable torch.export program: {type(err).__name__}") from err
