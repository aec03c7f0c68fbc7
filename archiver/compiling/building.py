"""From a program to the files that a worker runs, each of them reproducible: no path of this machine, no time and no
random name stays in it."""

from __future__ import annotations

import os
import re
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.export import ExportedProgram

from archiver.compiling.descriptors import reproducible_descriptors
from archiver.compiling.surroundings import instructions_tried_once, quiet, reproducible_compiler_in, threads
from archiver.instructions import compiler_settings
from config.cpu_targets import CpuTarget

# Where a node came from: paths, object numbers and source lines of this machine, which nothing reads at run time.
_TRACES = ("from_node", "nn_module_stack", "source_fn_stack", "stack_trace", "torch_fn")
# Inductor names some kernels after Python objects, with their addresses.
_ADDRESS = re.compile(rb"( at 0x)([0-9a-f]+)")
_ARCHIVE_TIME = (1980, 1, 1, 0, 0, 0)


def settings_for(target: CpuTarget) -> dict[str, object]:
    """What Inductor is told."""
    return {
        "freezing": True,
        "aot_inductor.enable_line_tables": False,
        # Its key holds the compiler's name, which is new in every run, and it needs the program `openssl`.
        "aot_inductor.precompile_headers": False,
        **compiler_settings(target),
    }


def build(program: ExportedProgram, target: CpuTarget, worker_threads: int, file: Path) -> None:
    """An AOTInductor package of a program, for the threads and the machine that it will run on."""
    as_a_worker = threads(worker_threads)
    reproducible = reproducible_descriptors()
    with torch.no_grad(), quiet(), as_a_worker, reproducible, instructions_tried_once(), _private_cache() as scratch:
        raw = scratch / "raw.pt2"
        settings = settings_for(target) | {"cpp.cxx": (str(reproducible_compiler_in(scratch)),)}
        torch._inductor.aoti_compile_and_package(program, package_path=str(raw), inductor_configs=settings)
        normalise_package(raw, file)


def save_program(program: ExportedProgram, file: Path) -> None:
    """An exported program without its example inputs, the only part of it that would be pickled."""
    for graph_module in program.graph_module.modules():
        for node in getattr(graph_module, "graph", torch.fx.Graph()).nodes:
            for key in _TRACES:
                node.meta.pop(key, None)
    with quiet(), tempfile.TemporaryDirectory() as scratch:
        raw = Path(scratch) / "raw.pt2"
        torch.export.save(program, raw)
        normalise_package(raw, file)


def prune_cache(cache: Path) -> None:
    """Leaves of a compile cache what a worker needs to start without a compiler: the kernels."""
    if not cache.is_dir():
        return
    for file in sorted(cache.rglob("*")):
        if file.is_file() and file.suffix not in (".so", ".bin"):
            file.unlink()
    for directory in sorted((path for path in cache.rglob("*") if path.is_dir()), reverse=True):
        if not any(directory.iterdir()):
            directory.rmdir()


def normalise_package(raw: Path, file: Path) -> None:
    """A `.pt2` of torch's with what a worker does not read taken out and what differs from run to run made equal."""
    with zipfile.ZipFile(raw) as source, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as target:
        kept = {_stable_name(name): source.read(name) for name in source.namelist() if _is_read(name)}
        for name in sorted(kept):
            target.writestr(zipfile.ZipInfo(name, _ARCHIVE_TIME), _stable_data(name, kept[name]))


def _is_read(name: str) -> bool:
    return not name.endswith((".cpp", ".kernel_metadata.json"))


def _stable_name(name: str) -> str:
    """torch names files after hashes of paths: the folder after the archive's file, the library after its source."""
    folder, rest = name.split("/", 1)
    return re.sub(r"^(data/aotinductor/\w+)/[^/.]+\.", r"\1/model.", rest).join(("model/", "")) if folder else name


def _stable_data(name: str, data: bytes) -> bytes:
    if name.endswith("/.data/serialization_id"):
        return b"0" * len(data)
    if "/data/sample_inputs/" in name:
        # The only pickle in a program; torch takes an empty file for a program without example inputs.
        return b""
    if name.endswith(".so"):
        return _ADDRESS.sub(lambda match: match[1] + b"0" * len(match[2]), data)
    return data


@contextmanager
def _private_cache() -> Iterator[Path]:
    """A folder of its own for Inductor: nothing of an earlier compilation is found, nothing is left behind."""
    before = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    with tempfile.TemporaryDirectory(prefix="marina-compile-") as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        try:
            yield Path(folder)
        finally:
            if before is None:
                del os.environ["TORCHINDUCTOR_CACHE_DIR"]
            else:
                os.environ["TORCHINDUCTOR_CACHE_DIR"] = before
