"""The graph around a network: all tensor work between a request's bytes and its answer.

It takes uint8 pixels or typed tensors, and returns float32 answers.
"""

from __future__ import annotations

import copy

import torch
from torch import nn

from archiver.encoders import OUTPUTS, EncoderGraph
from archiver.sources import Source
from config.errors import SourceError
from config.record import Port
from config.spec import Spec
from handlers.networks import DTYPES, ImageGraph, TensorGraph


def build_graph(spec: Spec, source: Source, precision: str) -> nn.Module:
    """The graph around the network in a precision; the source's own network is not changed."""
    dtype = DTYPES[precision]
    network = source.network if dtype == torch.float32 else copy.deepcopy(source.network).to(dtype)
    network = network.to(spec.serving.device)
    if spec.model.task is not None:
        return EncoderGraph(network, spec)
    if source.image is not None and source.inputs[0].name == "image":
        image = source.image
        mean, std = image.per_channel(image.mean), image.per_channel(image.std)
        graph = ImageGraph(network, dtype, mean=mean, std=std, width=image.width, top_k=image.top_k)
        return graph.to(spec.serving.device)
    return TensorGraph(network, dtype)


def examples(spec: Spec, source: Source, rows: int) -> tuple[torch.Tensor, ...]:
    """Seeded random inputs, for export and for checks without calibration data. Inputs that vary have their largest
    size; if the model takes a mask, it is among them."""
    generator = torch.Generator().manual_seed(spec.model.seed)
    values = [_random(port, rows, generator).to(spec.serving.device) for port in source.inputs]
    lengths = source.lengths
    if lengths is not None and lengths.mask is not None:
        mask = torch.ones(rows, lengths.buckets[-1], dtype=getattr(torch, lengths.mask_dtype))
        values.insert(lengths.mask, mask.to(spec.serving.device))
    return tuple(values)


def _random(port: Port, rows: int, generator: torch.Generator) -> torch.Tensor:
    shape, dtype = (rows, *port.shape), getattr(torch, port.dtype)
    if dtype.is_floating_point:
        low, high = port.min if port.min is not None else -1.0, port.max if port.max is not None else 1.0
        return torch.rand(shape, generator=generator, dtype=dtype) * (high - low) + low
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator, dtype=torch.uint8).to(torch.bool)
    low, high = int(port.min or 0), int(port.max if port.max is not None else (255 if dtype == torch.uint8 else 1))
    return torch.randint(low, high + 1, shape, generator=generator, dtype=dtype)


def output_ports(spec: Spec, graph: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[Port, ...]:
    """The names, shapes and types of the graph's outputs. Raises SourceError if the graph fails, or if an output does
    not have one row per input row."""
    rows = inputs[0].shape[0]
    try:
        with torch.no_grad():
            outputs = graph(*inputs)
    except Exception as err:
        shapes = ", ".join(f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}" for value in inputs)
        raise SourceError(
            f"{spec.file}: `model.source`: the model fails on inputs {shapes}: {type(err).__name__}: {err}",
            hint="compare `model.image` or `model.inputs` with what the model takes",
        ) from err
    for value in outputs:
        if not isinstance(value, torch.Tensor) or value.ndim == 0 or value.shape[0] != rows:
            shape = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
            raise SourceError(
                f"{spec.file}: `model.source`: got an output {shape} for {rows} rows, "
                "allowed: tensors with one row per input row"
            )
    names = _output_names(spec, graph, len(outputs))
    return tuple(
        Port(name=name, shape=tuple(value.shape[1:]), dtype=str(value.dtype).removeprefix("torch."))
        for name, value in zip(names, outputs, strict=True)
    )


def _output_names(spec: Spec, graph: nn.Module, count: int) -> tuple[str, ...]:
    if isinstance(graph, ImageGraph) and graph.top_k:
        return ("top_probs", "top_indices")
    names = OUTPUTS[spec.model.task] if spec.model.task else spec.model.outputs
    if names is None:
        return ("output",) if count == 1 else tuple(f"output_{index}" for index in range(count))
    if len(names) != count:
        raise SourceError(f"{spec.file}: `model.outputs`: got {len(names)} names, but the model has {count} outputs")
    return names
