"""The graph around a network, and a network from its source: what `compile: eager` runs in a worker.

The packager exports the same graph for the other ways to compile, so that all of them take and give the same.
"""

import ast
import importlib.util
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from handlers.record import PackedCode, PackedRecord, RecordError

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "int8": torch.float32}
# Of a package: below it lie the files of the factory, as they lay beside each other.
SOURCE_FOLDER = "source"
# In front of names, for no installed module has such.
_OURS = "marina_user_"


class ImageGraph(nn.Module):
    """uint8 N×H×W×C in; the top classes and their probabilities out, or the network's own outputs when `top_k` is 0.

    Scaling, normalisation, softmax and top-k are inside, so that the compiler fuses them and the handler moves bytes
    only. `mean` and `std` have a number a channel.
    """

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
    ) -> None:
        super().__init__()
        self.network = network
        self.dtype = dtype
        self.top_k = top_k
        means, stds = torch.tensor(mean), torch.tensor(std)
        # (pixel / 255 - mean) / std as one multiplication and one addition. There is a factor for every value of a row,
        # not one a channel, so that the compiler makes one vector loop of a row and not one of three values a pixel.
        self.register_buffer("scale", (1 / (255 * stds)).repeat(width), persistent=False)
        self.register_buffer("shift", (-means / stds).repeat(width), persistent=False)

    def normalised(self, pixels: torch.Tensor) -> torch.Tensor:
        """What the network gets: float32 N×C×H×W, in the memory order of the pixels."""
        rows = pixels.flatten(2).to(torch.float32) * self.scale + self.shift
        return rows.view(pixels.shape).permute(0, 3, 1, 2)

    def forward(self, pixels: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs = self.network(self.normalised(pixels).to(self.dtype))
        if self.top_k == 0:
            return _flat(outputs)
        probabilities = torch.softmax(outputs.to(torch.float32), dim=-1)
        top_probs, top_indices = torch.topk(probabilities, self.top_k)
        return top_probs, top_indices


class TensorGraph(nn.Module):
    """The network's arguments in, its outputs flat and in float32 where they are floating point."""

    def __init__(self, network: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.network = network
        self.dtype = dtype
        self.named = keyword_only(network)

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = [self._cast(value) for value in inputs]
        ordered = len(values) - len(self.named)
        return _flat(self.network(*values[:ordered], **dict(zip(self.named, values[ordered:], strict=True))))

    def _cast(self, value: torch.Tensor) -> torch.Tensor:
        return value.to(self.dtype) if value.is_floating_point() and self.dtype != torch.float32 else value


def keyword_only(network: nn.Module) -> tuple[str, ...]:
    """The arguments that a network takes by their names only; they come after those that it takes by their order."""
    parameters = inspect.signature(network.forward).parameters.values()
    return tuple(
        parameter.name
        for parameter in parameters
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty
    )


def without_dataclasses(outputs: Any) -> Any:
    """A dataclass of outputs as a dictionary of its fields, which torch can take apart."""
    fields = getattr(type(outputs), "__dataclass_fields__", None)
    if fields is None or isinstance(outputs, (dict, tuple)):
        return outputs
    return {name: getattr(outputs, name) for name in fields}


def _flat(outputs: object) -> tuple[torch.Tensor, ...]:
    """The tensors in their order; what a model left out, such as a loss, is not an output."""
    leaves = [leaf for leaf in pytree.tree_leaves(without_dataclasses(outputs)) if leaf is not None]
    return tuple(leaf.to(torch.float32) if leaf.dtype in (torch.bfloat16, torch.float16) else leaf for leaf in leaves)


def graph_from_source(record: PackedRecord, directory: Path, device: torch.device) -> nn.Module:
    """What the record says of source code, built and filled with its weights; runs the files of the package."""
    if record.code is None:
        raise RecordError("`code`: missing, but `eager` needs it: package again")
    dtype = DTYPES[record.precision]
    network = _built(record.code, directory).eval().to(device)
    if dtype != torch.float32:
        network = network.to(dtype)
    image = record.image
    if image is None or record.inputs[0].name != "image":
        return TensorGraph(network, dtype)
    graph = ImageGraph(network, dtype, mean=image.mean, std=image.std, width=image.width, top_k=image.top_k)
    return graph.to(device)


def _built(code: PackedCode, directory: Path) -> nn.Module:
    from safetensors.torch import load_file

    file = directory / SOURCE_FOLDER / code.file
    if not file.is_file():
        raise RecordError(f"`code`: `{code.file}` is not in the package")
    # For good: a file may import its neighbours when it is called.
    sys.path[:0] = import_folders(file)
    module = import_source(file)
    torch.manual_seed(code.seed)
    factory = getattr(module, code.factory)
    network: nn.Module = factory if isinstance(factory, nn.Module) else factory()
    weights = load_file(directory / code.weights)
    missing, strange = network.load_state_dict(weights, strict=False)
    # Tensors that several names share are saved under one of them.
    if strange or set(missing) - set(code.shared):
        raise RecordError(f"`{code.weights}` does not fit `{code.file}:{code.factory}`: package again")
    return network


def import_source(file: Path) -> ModuleType:
    """The file as a module; with the packages around it where it imports relatively."""
    top = top_folder(file)
    if top == file.parent:
        return _imported(_OURS + file.stem, file)
    first, *further = file.parent.relative_to(top).parts
    name = _OURS + first
    for known in [module for module in sys.modules if module == name or module.startswith(f"{name}.")]:
        del sys.modules[known]
    folder = top / first
    module = _imported(name, folder / "__init__.py")
    for part in further:
        folder, name = folder / part, f"{name}.{part}"
        module = _imported(name, folder / "__init__.py")
    return module if file.name == "__init__.py" else _imported(f"{name}.{file.stem}", file)


def import_folders(file: Path) -> list[str]:
    """Where its neighbours are imported from: beside it, and beside the packages around it."""
    return list(dict.fromkeys((str(file.parent), str(top_folder(file)))))


def top_folder(file: Path) -> Path:
    """The folder that its imports are relative to: that of the file, or of the outermost package around it where the
    file imports relatively, or is such a package."""
    folder = file.parent
    tree = ast.parse(file.read_bytes())
    relative = any(isinstance(node, ast.ImportFrom) and node.level for node in ast.walk(tree))
    while (relative or file.name == "__init__.py") and (folder / "__init__.py").is_file():
        folder = folder.parent
    return folder


def _imported(name: str, file: Path) -> ModuleType:
    # Registered, because torch.export looks a class's module up there.
    origin = importlib.util.spec_from_file_location(name, file)
    if origin is None or origin.loader is None:
        raise ImportError(f"`{file.name}` is not a Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(origin)
    origin.loader.exec_module(module)
    return module
