"""From a graph to the files a worker runs: AOTInductor packages, or an exported program and its compiled kernels.

Every file is made reproducible: no path of this machine, no time and no random name stays in it.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import tempfile
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path

import torch
from torch import nn
from torch.export import ExportedProgram

from archiver.compile_cache import compile_key, keep, taken_out
from archiver.descriptors import reproducible_descriptors
from archiver.encoders import EncoderGraph
from archiver.inputs import Rows
from archiver.instructions import compiler_settings
from archiver.lengths import of_length, varying_dimensions
from archiver.sources import Source
from archiver.toolchain import find_compiler
from config.errors import SourceError
from config.record import Artifact
from config.spec import Spec
from handlers.lengths import SHORTEST
from handlers.networks import TensorGraph

# Where a node came from: paths, object numbers and source lines of this machine, which nothing reads at run time.
_TRACES = ("from_node", "nn_module_stack", "source_fn_stack", "stack_trace", "torch_fn")
# Inductor names some kernels after Python objects, with their addresses.
_ADDRESS = re.compile(rb"( at 0x)([0-9a-f]+)")
# torch names the line where it stopped in two ways.
_USER_FRAME = re.compile(r'File "([^"]+)", line (\d+), in \w+(?:, code:|\n) *(.+)')
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_ARCHIVE_TIME = (1980, 1, 1, 0, 0, 0)


def trace(spec: Spec, graph: nn.Module, inputs: tuple[torch.Tensor, ...], source: Source) -> ExportedProgram:
    """The graph as a program for every batch up to the largest and every length, or for the one batch it can have."""
    sizes, only_batch = spec.model.batch_sizes, source.only_batch
    if only_batch is not None and sizes != (only_batch,):
        raise SourceError(
            f"{spec.file}: `model.batch_sizes`: got {list(sizes)}, "
            f"but `{spec.model.source}` was exported for {only_batch} rows",
            hint=f"batch_sizes: [{only_batch}], or export it with a dynamic first dimension",
        )
    shapes = _any_size(spec, inputs, source)
    if shapes is not None and isinstance(graph, (TensorGraph, EncoderGraph)):
        shapes = (shapes,)  # it takes its inputs as *inputs, one tuple
    try:
        # What torch could not export it also prints, as a graph of its own names.
        with torch.no_grad(), quiet(), redirect_stderr(io.StringIO()):
            return torch.export.export(graph, inputs, dynamic_shapes=shapes, strict=True)
    except Exception as err:
        raise _not_exported(spec, err) from err


def _not_exported(spec: Spec, err: Exception) -> SourceError:
    """What torch could not export, at the line of the user's own that it stopped at, and what to do."""
    text, sizes = _COLOURS.sub("", str(err)), spec.model.batch_sizes
    reason = next((line.strip() for line in text.splitlines() if line.strip()), type(err).__name__)
    if "ConstraintViolation" in type(err).__name__ or "Constraints violated" in text:
        hint = f"its batch is fixed by the model's code; `batch_sizes: [{max(sizes)}]` packages that one"
        return SourceError(f"{spec.file}: `model.source`: cannot be exported: {reason}", hint=hint)
    if not spec.model.source.partition(":")[0].endswith(".py"):
        hint = "export the model yourself and use `source: ./program.pt2`"
        return SourceError(f"{spec.file}: `model.source`: cannot be exported: {reason}", hint=hint)
    hint = "compile: eager, which runs this file as it is; or decide with `torch.where` or `torch.cond`, and keep `aot`"
    folder = spec.path(spec.model.source.partition(":")[0]).parent
    # The innermost last: torch's own frames lie elsewhere.
    for file, line, code in reversed(_USER_FRAME.findall(text)):
        if Path(file).is_relative_to(folder.resolve()) and "site-packages" not in file:
            place = f"{os.path.normpath(folder / Path(file).relative_to(folder.resolve()))}:{line}"
            return SourceError(f"{place}: `{code.strip()}` cannot be exported: {reason}", hint=hint)
    return SourceError(f"{spec.file}: `model.source`: cannot be exported: {reason}", hint=hint)


def compile_aot(
    spec: Spec, source: Source, module: nn.Module, inputs: Rows, shape: tuple[int, int | None], folder: Path
) -> Artifact:
    """One AOTInductor package with a static batch, and a static length unless it is dynamic, for the threads and the
    machine it will run on."""
    batch, length = shape
    file = folder / (f"model-b{batch}.pt2" if length is None else f"model-b{batch}-l{length}.pt2")
    rows = tuple(value[:batch].contiguous() for value in of_length(source, inputs, length))
    with torch.no_grad(), quiet(), threads(spec.threads), reproducible_descriptors(), _private_cache() as scratch:
        program = torch.export.export(module, rows, dynamic_shapes=_any_length(source, len(rows)))
        settings: dict[str, object] = {
            "freezing": True,
            "aot_inductor.enable_line_tables": False,
            # Its key holds the compiler's name, which is new in every run, and it needs the program `openssl`.
            "aot_inductor.precompile_headers": False,
            **compiler_settings(spec.model.cpu_target),
        }
        key = compile_key(program, {"target": spec.model.cpu_target} | settings)
        if not taken_out(key, file):
            raw = scratch / "raw.pt2"
            settings["cpp.cxx"] = (str(_reproducible_compiler(scratch)),)
            torch._inductor.aoti_compile_and_package(program, package_path=str(raw), inductor_configs=settings)
            normalise_package(raw, file)
            keep(key, file)
    return Artifact(file=file.name, batch=batch, length=length)


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


def _any_size(spec: Spec, inputs: tuple[torch.Tensor, ...], source: Source) -> tuple[object, ...] | None:
    """The dynamic dimensions of every input: the batch, and the one that varies from request to request; None when
    there is only one batch size and length."""
    sizes, lengths = spec.model.batch_sizes, source.lengths
    dynamic: list[dict[int, object]] = [{} for _ in inputs]
    if len(sizes) > 1:
        batch = torch.export.Dim("batch", min=1, max=max(sizes))
        for dimensions in dynamic:
            dimensions[0] = batch
    if lengths is not None and (lengths.dynamic or len(lengths.buckets) > 1):
        shortest = SHORTEST if lengths.dynamic else min(lengths.buckets)
        length = torch.export.Dim("length", min=shortest, max=max(lengths.buckets))
        for argument, dimension in varying_dimensions(source):
            dynamic[argument][dimension] = length
    return tuple(dynamic) if any(dynamic) else None


def _any_length(source: Source, arguments: int) -> tuple[dict[int, object], ...] | None:
    """The dynamic dimensions of an artifact for one batch size."""
    if source.lengths is None or not source.lengths.dynamic:
        return None
    length = torch.export.Dim("length", min=SHORTEST, max=max(source.lengths.buckets))
    dynamic: tuple[dict[int, object], ...] = tuple({} for _ in range(arguments))
    for argument, dimension in varying_dimensions(source):
        dynamic[argument][dimension] = length
    return dynamic


def export_again(spec: Spec, module: nn.Module, inputs: tuple[torch.Tensor, ...], source: Source) -> ExportedProgram:
    """A traced or quantised module as a program for every batch it has to serve."""
    with torch.no_grad(), quiet():
        return torch.export.export(module, inputs, dynamic_shapes=_any_size(spec, inputs, source))


@contextmanager
def reproducible_compiler() -> Iterator[dict[str, str]]:
    """The environment of a process that compiles kernels as a worker would, only reproducibly."""
    with tempfile.TemporaryDirectory(prefix="marina-compile-") as folder:
        name = _reproducible_compiler(Path(folder)).name
        yield os.environ | {"CXX": name, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


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


def _reproducible_compiler(folder: Path) -> Path:
    """A compiler that leaves no path, symbol or build number of this machine in what it makes.

    Asked for its version it answers as the real one, called by the same name: Inductor finds kernels again by that.
    """
    compiler = Path(find_compiler())
    script = folder / compiler.name
    lines = (
        "#!/bin/sh",
        f"PATH={shlex.quote(str(compiler.parent))}:$PATH",
        f'[ $# -eq 1 ] && exec {compiler.name} "$@"',
        'case " $* " in *" -shared "*) link="-s -Wl,--build-id=none";; *) link="";; esac',
        f'exec {compiler.name} "$@" -Wno-builtin-macro-redefined \'-D__FILE__="model.cpp"\' $link',
    )
    script.write_text("\n".join(lines) + "\n", encoding="utf-8")
    script.chmod(0o755)
    return script


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


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Inductor writes the number of threads into its loops, so compilation runs with those of a worker."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings torch has for its own developers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
