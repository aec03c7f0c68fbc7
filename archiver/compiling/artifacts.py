"""Turns a program into the files that a worker runs. Each file is reproducible: it holds no path of this machine, no
time and no random name."""

import re
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.export import ExportedProgram

from marina.archiver.compiling.cache import is_on_gpu
from marina.archiver.compiling.descriptors import reproducible_descriptors
from marina.archiver.compiling.environment import (
    cached_instruction_checks,
    quiet,
    reproducible_compiler_in,
    torch_threads,
)
from marina.archiver.cpu_target import compiler_settings
from marina.config.cpu_targets import CpuTarget
from marina.config.machine import environment_with

# Metadata on where a node came from: paths, object ids and source lines of this machine. Nothing reads it at run time.
_NODE_ORIGINS = ("from_node", "nn_module_stack", "source_fn_stack", "stack_trace", "torch_fn")
# Inductor names some kernels after Python objects, including their addresses.
_ADDRESS = re.compile(rb"( at 0x)([0-9a-f]+)")
_ARCHIVE_TIME = (1980, 1, 1, 0, 0, 0)


def inductor_settings(program: ExportedProgram, target: CpuTarget) -> dict[str, object]:
    """Inductor's options for a program, on the GPU or on this CPU target."""
    settings: dict[str, object] = {
        "aot_inductor.enable_line_tables": False,
        # The cache key of these headers includes the compiler's path, which changes every run, and it needs `openssl`.
        "aot_inductor.precompile_headers": False,
    }
    if is_on_gpu(program):
        # Not frozen: where that puts convolutions into channels-last order, a view after them may fit no more. The
        # kernels belong into the library, because torch would look for their files again when each first runs.
        return settings | {"aot_inductor.embed_kernel_binary": True}
    return settings | {"freezing": True} | compiler_settings(target)


def compile_artifact(program: ExportedProgram, target: CpuTarget, worker_threads: int, file: Path) -> None:
    """Compiles a program into an AOTInductor package for a CPU target and a worker's number of threads."""
    with (
        torch.no_grad(),
        quiet(),
        torch_threads(worker_threads),
        reproducible_descriptors(),
        cached_instruction_checks(),
        _private_cache() as scratch,
    ):
        raw = scratch / "raw.pt2"
        settings = inductor_settings(program, target) | {"cpp.cxx": (str(reproducible_compiler_in(scratch)),)}
        torch._inductor.aoti_compile_and_package(program, package_path=str(raw), inductor_configs=settings)
        normalise_package(raw, file)


def save_program(program: ExportedProgram, file: Path) -> None:
    """Saves an exported program without its example inputs, which are the only part that torch would pickle."""
    for graph_module in program.graph_module.modules():
        for node in getattr(graph_module, "graph", torch.fx.Graph()).nodes:
            for key in _NODE_ORIGINS:
                node.meta.pop(key, None)
    with quiet(), tempfile.TemporaryDirectory() as scratch:
        raw = Path(scratch) / "raw.pt2"
        torch.export.save(program, raw)
        normalise_package(raw, file)


def keep_only_kernels(cache: Path) -> None:
    """Deletes everything from the cache in a `jit` package except the kernels, which are all that a worker needs to
    start without a compiler."""
    if not cache.is_dir():
        return
    for file in sorted(cache.rglob("*")):
        if file.is_file() and file.suffix not in (".so", ".bin"):
            file.unlink()
    for directory in sorted((path for path in cache.rglob("*") if path.is_dir()), reverse=True):
        if not any(directory.iterdir()):
            directory.rmdir()


def normalise_package(raw: Path, file: Path) -> None:
    """Copies a `.pt2` that torch wrote, without what a worker does not read and without what differs between runs."""
    with zipfile.ZipFile(raw) as source, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as target:
        # A worker reads neither the C++ source nor the metadata of kernels.
        names = [name for name in source.namelist() if not name.endswith((".cpp", ".kernel_metadata.json"))]
        contents = {_stable_name(name): source.read(name) for name in names}
        assert len(contents) == len(names), f"two of these files would get one name: {names}"
        for name in sorted(contents):
            target.writestr(zipfile.ZipInfo(name, _ARCHIVE_TIME), _stable_data(name, contents[name]))


def _stable_name(name: str) -> str:
    """The name of a file without the path hashes that torch puts there: it names the folder after the archive's file,
    and the library after its source."""
    _, path = name.split("/", 1)
    return "model/" + re.sub(r"^(data/aotinductor/\w+)/[^/.]+\.", r"\1/model.", path)


def _stable_data(name: str, data: bytes) -> bytes:
    if name.endswith("/.data/serialization_id"):
        return b"0" * len(data)
    if "/data/sample_inputs/" in name:
        # The only pickle in a program; torch reads an empty file as "no example inputs".
        return b""
    if name.endswith(".so"):
        return _ADDRESS.sub(lambda match: match[1] + b"0" * len(match[2]), data)
    return data


@contextmanager
def _private_cache() -> Iterator[Path]:
    """Gives Inductor a temporary cache folder, so that it finds nothing of earlier compilations and leaves nothing."""
    with (
        tempfile.TemporaryDirectory(prefix="marina-compile-") as folder,
        environment_with({"TORCHINDUCTOR_CACHE_DIR": folder}),
    ):
        yield Path(folder)
