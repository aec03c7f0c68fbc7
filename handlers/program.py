"""A `torch.export` program from disk, without unpickling, and the two ways to run it: compiled here, or as it is.

`torch.export.load` unpickles tensor subclasses, script objects and, as a fallback, sample inputs. A program of plain
tensors needs none of that, so a file that asks for it is refused before torch sees it."""

import json
import logging
import os
import re
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from handlers.record import RecordError

logger = logging.getLogger(__name__)

# In the cache folder of a package for CUDA.
ARTIFACTS = "artifacts.bin"

RunBatch = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]

_PLAIN_ENTRY = re.compile(
    r"(data/weights/(weight_\d+|model_weights_config\.json)"
    r"|data/constants/(tensor_\d+|model_constants_config\.json)"
    r"|data/sample_inputs/model\.pt|models/model\.json|archive_format|archive_version|byteorder|\.data/\w+)"
)


def load_program(path: Path) -> torch.nn.Module:
    """The program's module, on the device that it was exported for; raises `RecordError` for a file that needs
    unpickling."""
    _refuse_pickles(path)
    # Quantised programs name operators that are registered by this import and by no other of torch's own.
    import torch.ao.quantization.fx._decomposed

    try:
        return torch.export.load(path).module()
    except (RuntimeError, ValueError, KeyError, AssertionError) as err:
        raise RecordError(f"{path.name}: this torch {torch.__version__} cannot load the program: {err}") from err


def compile_program(module: torch.nn.Module, device: torch.device, dynamic: Sequence[tuple[int, int]] = ()) -> RunBatch:
    """`torch.compile` of a program, one static shape at a time, but for the dimensions that are dynamic: an argument's
    place, and which of its own. The packager's compile cache must come from this function."""
    from torch._inductor import config

    # Weights are packed for oneDNN, and int8 convolutions are fused, only when frozen. On CUDA freezing gains little
    # and it keeps graphs out of the compile cache, where Triton's long compilations belong.
    config.freezing = device.type == "cpu"
    # A precompiled header is compiled anew on every machine, also where every kernel is already there, and asks for
    # the program `openssl`.
    config.cpp_cache_precompile_headers = False
    # fullgraph: past torch's limit of recompilations a shape is an error, not a silent fall to eager.
    compiled: RunBatch = without_grad(torch.compile(module, dynamic=False, fullgraph=True))
    if not dynamic:
        return compiled

    def run(inputs: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        for place, dimension in dynamic:
            torch._dynamo.mark_dynamic(inputs[place], dimension)
        return compiled(inputs)

    return run


def use_cache(folder: Path) -> None:
    """Compiles with the kernels that the packager left in a folder, and leaves new ones there. On CUDA it also holds
    what `torch.compiler.save_cache_artifacts` gave; a cache that torch rejects costs time, not correctness."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    saved = folder / ARTIFACTS
    if saved.is_file() and torch.compiler.load_cache_artifacts(saved.read_bytes()) is None:
        logger.warning("the compile cache was rejected by torch %s: compiling without it", torch.__version__)


def without_grad(function: Callable[..., Sequence[torch.Tensor]]) -> RunBatch:
    """A function of tensors as something to run batches with."""

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
            # The packager empties it; torch takes that for a program without example inputs.
            if archive.read(entries["data/sample_inputs/model.pt"]):
                raise RecordError(f"{path.name}: has pickled sample inputs")
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, zipfile.BadZipFile) as err:
        raise RecordError(f"{path.name}: not a readable torch.export program: {type(err).__name__}") from err
