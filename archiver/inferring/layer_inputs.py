"""The shapes that a layer may be given first, the likeliest first."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import nn

from archiver.inferring.inferred import Input

_SIDES = (224, 32, 28, 64, 96, 128, 48, 16, 256, 299, 384, 160, 192, 112, 84, 512, 8)
_LENGTHS = (128, 64, 32, 16, 8, 256, 512, 4)
_MOST_SIDE = 300
KNOWN = (
    nn.BatchNorm1d, nn.BatchNorm2d, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding, nn.EmbeddingBag, nn.Flatten,
    nn.LayerNorm, nn.Linear, nn.MultiheadAttention, nn.RNNBase,
)  # fmt: skip
_OF_SEQUENCES = (nn.Conv1d, nn.MultiheadAttention, nn.RNNBase, nn.EmbeddingBag)


def has_sequence_layers(network: nn.Module) -> bool:
    """Whether a layer of it goes along a sequence."""
    return any(isinstance(layer, _OF_SEQUENCES) for layer in network.modules())


def recurrent_states(network: nn.Module) -> Iterator[Input]:
    """What recurrent layers keep, a row for each row of the inputs."""
    for layer in network.modules():
        if isinstance(layer, nn.RNNBase):
            yield Input((layer.num_layers * (2 if layer.bidirectional else 1), layer.hidden_size))
        elif isinstance(layer, nn.RNNCellBase):
            yield Input((layer.hidden_size,))


def sounds() -> Iterator[Input]:
    """A second as it is usually recorded."""
    for shape in ((16000,), (1, 16000)):
        yield Input(shape, sequence=len(shape) - 1)


def layer_width(layer: nn.Module) -> int | None:
    """The size of the last dimension that a layer takes."""
    return layer.in_features if isinstance(layer, nn.Linear) else None


def layer_inputs(layer: nn.Module, network: nn.Module, *, sequence: bool) -> Iterator[Input]:
    """What a layer that an input reaches first may be given."""
    match layer:
        case nn.Embedding() | nn.EmbeddingBag():
            most = layer.num_embeddings - 1
            scalar = Input((), "int64", None, 0, most)
            first, *more = (Input((length,), "int64", 0, 0, most) for length in _all_of(_LENGTHS))
            yield from (first, scalar) if sequence else (scalar, first)
            yield from more
        case nn.Conv1d():
            yield from (Input((layer.in_channels, length), sequence=1) for length in _all_of(_LENGTHS))
        case nn.Conv2d() | nn.BatchNorm2d():
            channels = layer.in_channels if isinstance(layer, nn.Conv2d) else layer.num_features
            yield from (Input((channels, side, side)) for side in _all_of(_SIDES))
        case nn.Conv3d():
            yield from (Input((layer.in_channels, 16, side, side)) for side in _SIDES)
        case nn.Linear():
            yield from _wide(layer.in_features)
        case nn.BatchNorm1d():
            yield Input((layer.num_features,))
            yield from (Input((layer.num_features, length), sequence=1) for length in _LENGTHS)
        case nn.LayerNorm():
            shape = tuple(layer.normalized_shape)
            yield Input(shape)
            yield from (Input((length, *shape), sequence=0) for length in _LENGTHS)
        case nn.MultiheadAttention():
            yield from (Input((length, layer.embed_dim), sequence=0) for length in _LENGTHS)
        case nn.RNNBase():
            yield from (Input((length, layer.input_size), sequence=0) for length in _all_of(_LENGTHS))
        case nn.Flatten():
            head = next((layer for layer in network.modules() if isinstance(layer, nn.Linear)), None)
            if head is not None:
                yield from _pictures(head.in_features)
                yield Input((head.in_features,))


def _wide(width: int) -> Iterator[Input]:
    yield Input((width,))
    yield from (Input((length, width), sequence=0) for length in _LENGTHS)


def _pictures(values: int) -> Iterator[Input]:
    """Square ones, grey or in colours, of so many values."""
    for channels in (1, 3):
        side = math.isqrt(values // channels)
        if side > 3 and side * side * channels == values:
            yield Input((channels, side, side))


def _all_of(usual: tuple[int, ...]) -> Iterator[int]:
    yield from usual
    yield from (side for side in range(1, _MOST_SIDE) if side not in usual)
