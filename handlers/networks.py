"""Builds a network from its source, and the graph around it: this is what `compile: eager` runs in a worker.

For the other values of `compile`, the packager exports the same graph, so that all have the same inputs and outputs."""

import ast
import importlib.util
import inspect
import site
import sys
from collections import OrderedDict
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from marina.handlers.record import PackedCode, PackedRecord, RecordError

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "int8": torch.float32}
# The folder of a package that holds the factory's source files, in the layout that they had.
SOURCE_FOLDER = "source"
# Prefix for the names of the user's modules, so that they never collide with installed ones.
MODULE_PREFIX = "marina_user_"


class ImageGraph(nn.Module):
    """uint8 N×H×W×C in; the top classes and their probabilities out, or the network's own outputs when `top_k` is 0.

    Scaling, normalisation, the activation and top-k are part of the graph, so that the compiler can fuse them and the
    handler only moves bytes. `mean` and `std` have one number per channel."""

    scale: torch.Tensor
    shift: torch.Tensor

    def __init__(
        self,
        network: nn.Module,
        dtype: torch.dtype,
        *,
        mean: Sequence[float],
        std: Sequence[float],
        width: int,
        top_k: int,
        activation: str = "softmax",
    ) -> None:
        super().__init__()
        self.network = network
        self.dtype = dtype
        self.top_k = top_k
        self.activation = activation
        means, stds = torch.tensor(mean), torch.tensor(std)
        # (pixel / 255 - mean) / std as one multiplication and one addition. There is a factor for each value of a row,
        # not one per channel, so that the compiler makes one vector loop over a row instead of a loop over the three
        # values of each pixel.
        self.register_buffer("scale", (1 / (255 * stds)).repeat(width), persistent=False)
        self.register_buffer("shift", (-means / stds).repeat(width), persistent=False)

    def normalised(self, pixels: torch.Tensor) -> torch.Tensor:
        """The network's input: float32 N×C×H×W, in the memory order of the pixels."""
        rows = pixels.flatten(2).to(torch.float32) * self.scale + self.shift
        return rows.view(pixels.shape).permute(0, 3, 1, 2)

    def outputs(self, pixels: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """What the network itself returns for the pixels."""
        return flat_outputs(self.network(self.normalised(pixels).to(self.dtype)))

    def forward(self, pixels: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs = self.outputs(pixels)
        if self.top_k == 0:
            return outputs
        probabilities = outputs[0].to(torch.float32)
        if self.activation != "none":
            probabilities = probabilities.sigmoid() if self.activation == "sigmoid" else probabilities.softmax(-1)
        top_probs, top_indices = torch.topk(probabilities, min(self.top_k, probabilities.shape[-1]))
        return top_probs, top_indices


class TensorGraph(nn.Module):
    """The network's arguments in, its outputs as a flat tuple, with floating point as float32."""

    def __init__(self, network: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.network = network
        self.dtype = dtype
        self.named = keyword_only(network)

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = [self._cast(value) for value in inputs]
        ordered = len(values) - len(self.named)
        return flat_outputs(self.network(*values[:ordered], **dict(zip(self.named, values[ordered:], strict=True))))

    def _cast(self, value: torch.Tensor) -> torch.Tensor:
        return value.to(self.dtype) if value.is_floating_point() and self.dtype != torch.float32 else value


def keyword_only(network: nn.Module) -> tuple[str, ...]:
    """The names of a network's required keyword-only arguments. In our order of arguments they come last."""
    parameters = inspect.signature(network.forward).parameters.values()
    return tuple(
        parameter.name
        for parameter in parameters
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty
    )


def without_dataclasses(outputs: Any) -> Any:
    """Turns a dataclass of outputs into a dictionary, which torch can flatten; returns anything else unchanged."""
    fields = getattr(type(outputs), "__dataclass_fields__", None)
    if fields is None or isinstance(outputs, (dict, tuple)):
        return outputs
    return {name: getattr(outputs, name) for name in fields}


def flat_outputs(outputs: object) -> tuple[torch.Tensor, ...]:
    """The output tensors in order. Fields that the model left empty, such as a loss, are skipped."""
    leaves = [leaf for leaf in pytree.tree_leaves(without_dataclasses(outputs)) if leaf is not None]
    halves = (torch.bfloat16, torch.float16)
    return tuple(leaf.to(torch.float32) if getattr(leaf, "dtype", None) in halves else leaf for leaf in leaves)


def graph_from_source(record: PackedRecord, directory: Path, device: torch.device) -> nn.Module:
    """Builds the network from the package's source, loads its weights, and puts the graph around it. Executes source
    files of the package."""
    if record.code is None:
        raise RecordError("`code`: missing, but `eager` needs it: package again")
    dtype = DTYPES[record.precision]
    network = _build_network(record.code, directory).eval().to(device)
    if dtype != torch.float32:
        network = network.to(dtype)
    image = record.image
    if image is None or record.inputs[0].name != "image":
        return TensorGraph(network, dtype)
    graph = ImageGraph(
        network,
        dtype,
        mean=image.mean,
        std=image.std,
        width=image.width,
        top_k=image.top_k,
        activation=image.activation,
    )
    return graph.to(device)


def _build_network(code: PackedCode, directory: Path) -> nn.Module:
    from safetensors.torch import load_file

    file = directory / SOURCE_FOLDER / code.file
    if not file.is_file():
        raise RecordError(f"`code`: `{code.file}` is not in the package")
    # Never removed again, because the file may import its neighbours later, when it is called.
    sys.path[:0] = map(str, import_folders(file))
    module = import_source(file)
    torch.manual_seed(code.seed)
    factory = getattr(module, code.factory)
    network: nn.Module = factory if isinstance(factory, nn.Module) else factory()
    weights = OrderedDict(load_file(directory / code.weights))
    # Some layers refuse weights without the version of the layer that saved them.
    weights._metadata = network.state_dict()._metadata  # type: ignore[attr-defined]
    missing, unexpected = network.load_state_dict(weights, strict=False)
    # Tensors that several names share are saved under only one of them.
    if unexpected or set(missing) - set(code.shared):
        raise RecordError(f"`{code.weights}` does not fit `{code.file}:{code.factory}`: package again")
    return network


def import_source(file: Path) -> ModuleType:
    """Imports a file as a module; if it imports from the packages around it, as a part of them."""
    top = top_folder(file)
    if top == file.parent:
        return _import_file(MODULE_PREFIX + file.stem, file)
    first, *further = file.parent.relative_to(top).parts
    name = MODULE_PREFIX + first
    for known in [module for module in sys.modules if module == name or module.startswith(f"{name}.")]:
        del sys.modules[known]
    folder = top / first
    module = _import_package(name, folder)
    for part in further:
        folder, name = folder / part, f"{name}.{part}"
        module = _import_package(name, folder)
    return module if file.name == "__init__.py" else _import_file(f"{name}.{file.stem}", file)


def _import_package(name: str, folder: Path) -> ModuleType:
    if (folder / "__init__.py").is_file():
        return _import_file(name, folder / "__init__.py")
    package = sys.modules[name] = ModuleType(name)
    package.__path__ = [str(folder)]
    return package


def import_folders(file: Path) -> list[Path]:
    """The folders from which a file may import its neighbours: its own, the one around its packages, and, if it is a
    link, the one that it leads to."""
    linked = [file.resolve().parent] if file.is_symlink() else []
    return list(dict.fromkeys((file.parent, top_folder(file), *linked)))


def top_folder(file: Path) -> Path:
    """The folder from which a file's imports start: its own; or, if it imports from the packages around it or is an
    `__init__.py`, the folder that contains the outermost of them; or, if it imports from packages beside these, the
    folder that contains both."""
    names = _absolute_imports(file)
    folder = file.parent
    while (folder / "__init__.py").is_file():
        folder = folder.parent
    if folder == file.parent:
        # It may still be a package: one without an `__init__.py`.
        in_package = folder.name.isidentifier() and _imports_from(folder.parent, file, names)
        found = folder.parent if in_package else folder
    else:
        found = folder if file.name == "__init__.py" or _imports_from(folder, file, names) else file.parent
    return _folder_beside(found, file, names) or found


def _folder_beside(found: Path, file: Path, names: list[str]) -> Path | None:
    """The nearest folder around the file that has modules which it imports, and which are nowhere else."""
    folders = (found, file.parent, file.resolve().parent)
    missing = [name for name in names if not any(_has_module(folder, name) for folder in folders)]
    missing = [name for name in missing if not _is_installed(name.partition(".")[0])]
    folder = file.parent
    while missing and folder.name.isidentifier():
        folder = folder.parent
        if any(_has_module(folder, name) for name in missing):
            return folder
    return None


def _absolute_imports(file: Path) -> list[str]:
    """The dotted names that a file imports; of each `from` import, the name that it takes counts as a module's, too."""
    names: list[str] = []
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.ImportFrom) and not node.level:
            names += (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            names += (alias.name for alias in node.names)
    return names


def _has_module(folder: Path, name: str) -> bool:
    """Whether a folder has the module that a dotted name is, or one that contains it."""
    parts = name.split(".")
    places = [folder.joinpath(*parts[:end]) for end in range(1, len(parts) + 1)]
    return any(place.with_suffix(".py").is_file() or (place / "__init__.py").is_file() for place in places)


def _is_installed(package: str) -> bool:
    folders = [*site.getsitepackages(), site.getusersitepackages()]
    # An editable installation of Marina is in none of them.
    known = package == "marina" or package in sys.stdlib_module_names
    return known or PathFinder.find_spec(package, folders) is not None


def _imports_from(folder: Path, file: Path, names: list[str]) -> bool:
    """Whether a file imports from the package around it in this folder, relatively or by the package's name."""
    if any(isinstance(node, ast.ImportFrom) and node.level for node in ast.walk(ast.parse(file.read_bytes()))):
        return True
    package = file.relative_to(folder).parts[0]
    modules = {name.split(".")[1] for name in names if name.startswith(f"{package}.")}
    # The package has to hold one of them, because an installed package may have the same name.
    places = [folder / package / module for module in modules]
    return any(place.is_dir() or place.with_suffix(".py").is_file() for place in places)


def _import_file(name: str, file: Path) -> ModuleType:
    # Registered in sys.modules, because torch.export looks up a class's module there.
    origin = importlib.util.spec_from_file_location(name, file)
    if origin is None or origin.loader is None:
        raise ImportError(f"`{file.name}` is not a Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(origin)
    origin.loader.exec_module(module)
    return module
