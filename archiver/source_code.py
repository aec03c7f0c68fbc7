"""Packs the source for `compile: eager`: the file of a factory, the modules beside it that it imports, its weights."""

import ast
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from marina.archiver.archive import RESERVED_MODULES
from marina.archiver.sources import Source
from marina.config.errors import SourceError
from marina.config.record import Code
from marina.config.spec import Spec
from marina.handlers.networks import SOURCE_FOLDER, import_folders, top_folder

WEIGHTS = "weights.safetensors"
# The Python of every image that `marina image` builds.
IMAGE_PYTHON = (3, 11)


def stage_source(spec: Spec, source: Source, folder: Path) -> Code:
    """Copies the factory's files and saves the network's weights; returns the record's `code`."""
    text, _, factory = spec.model.source.partition(":")
    file = spec.path(text)
    for relative, path in local_modules(file).items():
        if (top := Path(relative).parts[0].removesuffix(".py")) in RESERVED_MODULES:
            raise SourceError(
                f"{spec.file}: `model.source`: `{path}` would hide the module `{top}` in the worker",
                hint="rename the file",
            )
        check_syntax(spec, path, "model.source")
        target = folder / SOURCE_FOLDER / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    shared = _save_weights(spec, source.network, folder / WEIGHTS)
    return Code(
        file=file.relative_to(top_folder(file)).as_posix(),
        factory=factory,
        weights=WEIGHTS,
        shared=shared,
    )


def check_syntax(spec: Spec, file: Path, field: str) -> None:
    """Raises SourceError if a file that a worker runs has syntax that the Python of an image does not know."""
    try:
        ast.parse(file.read_bytes(), feature_version=IMAGE_PYTHON)
    except SyntaxError as err:
        python = ".".join(map(str, IMAGE_PYTHON))
        text = f"{spec.file}: `{field}`: `{file}:{err.lineno}`: {err.msg}, allowed: Python {python}, which images have"
        raise SourceError(text) from err


def local_modules(file: Path) -> dict[str, Path]:
    """A Python file and every module beside it that it imports, directly or through another, by relative path.

    Imports inside functions count; imports by a name that is computed at run time do not."""
    root = top_folder(file)
    folders = [root, *import_folders(file)]
    modules: dict[str, Path] = {}
    waiting = [file, *_files_of(root, ".".join(file.relative_to(root).with_suffix("").parts))]
    while waiting:
        path = waiting.pop()
        folder = next(folder for folder in folders if path.is_relative_to(folder))
        relative = path.relative_to(folder).as_posix()
        if relative in modules:
            continue
        modules[relative] = path
        for name in _imported(path, folder):
            for place in folders:
                waiting += _files_of(place, name)
    return dict(sorted(modules.items()))


def _imported(path: Path, root: Path) -> Iterator[str]:
    """The dotted names that a file imports, relative to the folder; each `from` import may name a module itself."""
    package = path.relative_to(root).parent.parts
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join((*parents, *([node.module] if node.module else [])))
            yield base
            yield from (f"{base}.{alias.name}".lstrip(".") for alias in node.names)


def _files_of(root: Path, name: str) -> list[Path]:
    """The files in the folder that importing a dotted name would run."""
    parts = [part for part in name.split(".") if part]
    files = [root.joinpath(*parts[: end + 1]) / "__init__.py" for end in range(len(parts))]
    if parts:
        files.append(root.joinpath(*parts[:-1], f"{parts[-1]}.py"))
    return [file for file in files if file.is_file()]


def _save_weights(spec: Spec, network: nn.Module, file: Path) -> tuple[str, ...]:
    """Saves a network's state; returns the names of tensors that share their memory with one saved under another
    name."""
    tensors: dict[str, torch.Tensor] = {}
    seen: set[tuple[object, ...]] = set()
    shared = []
    for name, value in network.state_dict().items():
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.is_quantized:
            kind = type(value).__name__ if not isinstance(value, torch.Tensor) else "a sparse or quantised tensor"
            raise SourceError(
                f"{spec.file}: `model.source`: its state `{name}` is {kind}, allowed: plain tensors",
                hint="keep it out of `state_dict`, or use `compile: export`",
            )
        place = (value.data_ptr(), value.shape, value.stride(), value.dtype)
        if value.numel() and place in seen:
            shared.append(name)
            continue
        seen.add(place)
        tensors[name] = value.detach().clone().contiguous()
    save_file(tensors, file)
    return tuple(shared)
