"""A cache of compiled artifacts: a change of the spec that leaves the graph, its weights and its shapes alone compiles
nothing again.

An entry is named by a hash of everything that the compiler sees, and its content is checked when it is loaded."""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from torch.export import ExportedProgram

from marina.archiver.toolchain import compiler_version
from marina.config.record import file_sha256, partial_file, write_text
from marina.handlers.machine import machine_key

VARIABLE = "MARINA_CACHE"
_MOST_BYTES = 4_000_000_000
# Our own modules that affect the bytes of an artifact: a change of one invalidates the cache.
_COMPILING_MODULES = ("artifacts.py", "cache.py", "descriptors.py", "environment.py", "../cpu_target.py")


def cache_folder() -> Path | None:
    """`$MARINA_CACHE`, or Marina's folder in the user's cache; None when it is `off` or cannot be written."""
    chosen = os.environ.get(VARIABLE)
    if chosen == "off":
        return None
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(chosen) if chosen else Path(base) / "marina" / "compiled"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK) else None


def compile_key(program: ExportedProgram, settings: Mapping[str, object]) -> str:
    """A hash of the graph, its weights, its inputs, the compiler, its settings, and the machine."""
    digest = hashlib.sha256()
    here, inputs = Path(__file__).parent, _tensors(program.example_inputs)
    made_by = {
        "ours": [file_sha256(here / name) for name in _COMPILING_MODULES],
        "machine": machine_key(torch.device("cuda", 0) if is_on_gpu(program) else torch.device("cpu")),
        "processor": cpu_model(),
        "compiler": compiler_version(),
        "threads": torch.get_num_threads(),
        "settings": settings,
        "graph": _graph_code(program),
        "signature": str(program.graph_signature),
        "ranges": str(program.range_constraints),
        "inputs": [_layout_of(value) for value in inputs],
    }
    digest.update(json.dumps(made_by, sort_keys=True, default=str).encode())
    for name, value in sorted({**program.state_dict, **program.constants}.items()):
        digest.update(f"{name} {_layout_of(value)}".encode())
        if isinstance(value, torch.Tensor):
            digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def is_on_gpu(program: ExportedProgram) -> bool:
    """Whether a program computes on a GPU."""
    values = (program.state_dict, program.constants, program.example_inputs)
    return any(tensor.is_cuda for value in values for tensor in _tensors(value))


def load_from_cache(key: str, file: Path) -> bool:
    """Copies the artifact of a key to `file`; False if the cache has none or the entry is damaged."""
    folder = cache_folder()
    if folder is None:
        return False
    artifact, checksum = folder / f"{key}.pt2", folder / f"{key}.sha256"
    try:
        shutil.copyfile(artifact, file)
        if file_sha256(file) == checksum.read_text(encoding="ascii").strip():
            os.utime(artifact)  # _make_room deletes the least recently used first
            return True
    except (OSError, UnicodeDecodeError):
        pass
    file.unlink(missing_ok=True)
    return False


def store_in_cache(key: str, file: Path) -> None:
    """Stores an artifact under its key, and deletes the least recently used entries when the cache is too large."""
    folder = cache_folder()
    if folder is None:
        return
    try:
        write_text(folder / f"{key}.sha256", file_sha256(file) + "\n")
        partial = partial_file(folder / f"{key}.pt2")
        shutil.copyfile(file, partial)
        partial.replace(folder / f"{key}.pt2")
        _make_room(folder)
    except OSError:
        return  # the package itself is fine: a full cache disk must not fail it


def _make_room(folder: Path) -> None:
    entries = sorted(folder.glob("*.pt2"), key=lambda file: file.stat().st_mtime, reverse=True)
    total = 0
    for file in entries:
        total += file.stat().st_size
        if total > _MOST_BYTES:
            file.unlink(missing_ok=True)
            file.with_suffix(".sha256").unlink(missing_ok=True)


def _graph_code(program: ExportedProgram) -> list[str]:
    """The lines of its code with every shape, without the comments that name the source file and line of each."""
    text = program.graph_module.print_readable(print_output=False, include_stride=True, include_device=True)
    return [line for line in text.splitlines() if not line.lstrip().startswith("#")]


def _tensors(inputs: object) -> list[torch.Tensor]:
    return [value for value in torch.utils._pytree.tree_leaves(inputs) if isinstance(value, torch.Tensor)]


def _layout_of(value: object) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    return f"{value.dtype} {tuple(value.shape)} {value.stride()} {value.device.type}"


def cpu_model() -> str:
    """The CPU's model name. CPU flags are not enough for a cache key: oneDNN also packs weights by cache sizes."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "CPU part"):
            return value.strip()
    return ""
