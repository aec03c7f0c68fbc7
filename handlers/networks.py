"""The graph around a network, and a network from its source: what `compile: eager` runs in a worker.

The packager exports the same graph for the other ways to compile, so that all of them take and give the same.
"""

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn
from torch.utils import _pytree as pytree

from handlers.record import Code, Record, RecordError

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "int8": torch.float32}
# Of a package: below it lie the files of the factory, as they lay beside each other.
SOURCE_FOLDER = "source"


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

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return _flat(self.network(*(self._cast(value) for value in inputs)))

    def _cast(self, value: torch.Tensor) -> torch.Tensor:
        return value.to(self.dtype) if value.is_floating_point() and self.dtype != torch.float32 else value


def _flat(outputs: object) -> tuple[torch.Tensor, ...]:
    leaves = pytree.tree_leaves(outputs)
    return tuple(leaf.to(torch.float32) if leaf.dtype in (torch.bfloat16, torch.float16) else leaf for leaf in leaves)


def graph_from_source(record: Record, directory: Path, device: torch.device) -> nn.Module:
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


def _built(code: Code, directory: Path) -> nn.Module:
    from safetensors.torch import load_file

    folder = directory / SOURCE_FOLDER
    # For good: a file may import its neighbours when it is called.
    sys.path.insert(0, str(folder))
    module = _imported(folder / code.file)
    torch.manual_seed(code.seed)
    factory = getattr(module, code.factory)
    network: nn.Module = factory if isinstance(factory, nn.Module) else factory()
    weights = load_file(directory / code.weights)
    missing, strange = network.load_state_dict(weights, strict=False)
    # Tensors that several names share are saved under one of them.
    if strange or set(missing) - set(code.shared):
        raise RecordError(f"`{code.weights}` does not fit `{code.file}:{code.factory}`: package again")
    return network


def _imported(file: Path) -> object:
    # The name by which the packager imported it: what a class says of itself must not differ.
    name = f"marina_user_{file.stem}"
    module_spec = importlib.util.spec_from_file_location(name, file)
    if not file.is_file() or module_spec is None or module_spec.loader is None:
        raise RecordError(f"`code`: `{file.name}` is not in the package")
    module = sys.modules[name] = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    return module
