"""The inputs that a layer accepts, the likeliest first."""

import math
from collections.abc import Iterator

from torch import nn

from marina.archiver.inferring.inferred import Input

_SIDES = (224, 32, 28, 64, 96, 128, 48, 16, 256, 299, 384, 160, 192, 112, 84, 512, 8)
_LENGTHS = (128, 64, 32, 16, 8, 256, 512, 4)
_MOST_SIDE = 300
KNOWN = (
    nn.BatchNorm1d, nn.BatchNorm2d, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding, nn.EmbeddingBag, nn.Flatten,
    nn.LayerNorm, nn.Linear, nn.MultiheadAttention, nn.RNNBase, nn.RNNCellBase,
)  # fmt: skip
_SEQUENCE_LAYERS = (nn.Conv1d, nn.MultiheadAttention, nn.RNNBase, nn.EmbeddingBag)


def has_sequence_layers(network: nn.Module) -> bool:
    """Whether the network has a layer that processes sequences."""
    return any(isinstance(layer, _SEQUENCE_LAYERS) for layer in network.modules())


def recurrent_states(network: nn.Module) -> Iterator[Input]:
    """The states of the network's recurrent layers, with one row per input row."""
    for layer in network.modules():
        if isinstance(layer, nn.RNNBase):
            yield Input((layer.num_layers * (2 if layer.bidirectional else 1), layer.hidden_size))
        elif isinstance(layer, nn.RNNCellBase):
            yield Input((layer.hidden_size,))


def sounds() -> Iterator[Input]:
    """One second of sound at the usual 16 kHz, without and with a channel dimension."""
    for shape in ((16000,), (1, 16000)):
        yield Input(shape, sequence=len(shape) - 1)


def configured_inputs(network: nn.Module) -> Iterator[Input]:
    """Series and sounds of the only size that a model of `transformers` takes, as its configuration says."""

    def size(name: str) -> int:
        value = getattr(getattr(network, "config", None), name, None)
        return value if isinstance(value, int) else 0

    shapes = (
        (size("context_length"), size("num_input_channels"), 0),
        (size("max_length"), size("num_mel_bins"), 0),
        # Whisper halves the number of steps.
        (size("num_mel_bins"), 2 * size("max_source_positions"), 1),
    )
    yield from (Input((rows, columns), sequence=steps) for rows, columns, steps in shapes if rows and columns)


def layer_width(layer: nn.Module) -> int | None:
    """The size that a linear layer's input must have in its last dimension; None for other layers."""
    return layer.in_features if isinstance(layer, nn.Linear) else None


def layer_inputs(layer: nn.Module, network: nn.Module, *, sequence: bool) -> Iterator[Input]:
    """Inputs to try if they reach this layer first; `sequence`: a sequence is likelier than a single value."""
    match layer:
        case nn.Embedding() | nn.EmbeddingBag():
            most = layer.num_embeddings - 1
            scalar = Input((), "int64", None, 0, most)
            first, *more = (Input((length,), "int64", 0, 0, most) for length in _all_of(_LENGTHS))
            yield from (first, scalar) if sequence else (scalar, first)
            yield from more
        case nn.Conv1d():
            yield from _sequences(layer.in_channels, 1)
        case nn.Conv2d() | nn.BatchNorm2d():
            channels = layer.in_channels if isinstance(layer, nn.Conv2d) else layer.num_features
            yield from (Input((channels, side, side)) for side in _SIDES)
            # Before unusual sides, of which one may be as large as the number of channels.
            yield from (Input((side, side, channels)) for side in _SIDES)
            yield from (Input((channels, side, side)) for side in _all_of(_SIDES) if side not in _SIDES)
        case nn.Conv3d():
            yield from (Input((layer.in_channels, 16, side, side)) for side in _SIDES)
        case nn.Linear():
            yield Input((layer.in_features,))
            yield from (Input((length, layer.in_features), sequence=0) for length in _LENGTHS)
            yield from (Input((side, side, layer.in_features)) for side in _SIDES)
        case nn.BatchNorm1d():
            yield Input((layer.num_features,))
            yield from (Input((layer.num_features, length), sequence=1) for length in _LENGTHS)
        case nn.LayerNorm():
            shape = tuple(layer.normalized_shape)
            yield Input(shape)
            yield from (Input((length, *shape), sequence=0) for length in _LENGTHS)
            yield from (Input((side, side, *shape)) for side in _SIDES)
        case nn.MultiheadAttention():
            yield from (Input((length, layer.embed_dim), sequence=0) for length in _LENGTHS)
        case nn.RNNBase():
            yield from _sequences(layer.input_size, 0)
        case nn.RNNCellBase():
            yield Input((layer.input_size,))
        case nn.Flatten():
            head = next((layer for layer in network.modules() if isinstance(layer, nn.Linear)), None)
            if head is not None:
                yield from _square_pictures(head.in_features)
                yield Input((head.in_features,))


def _sequences(width: int, at: int) -> Iterator[Input]:
    """Sequences of steps of this width, with the steps along the dimension `at`, or along the other one if the model
    transposes its input; steps of a single number also without a dimension for it. A length that equals the width comes
    last, because it fits both ways."""
    for length in sorted(_all_of(_LENGTHS), key=lambda length: length == width):
        ways = [Input((length, width), sequence=0), Input((width, length), sequence=1)]
        yield from (ways[at], ways[1 - at])
        if width == 1:
            yield Input((length,), sequence=0)


def _square_pictures(values: int) -> Iterator[Input]:
    """Square pictures, grey or in colour, that have this many values."""
    for channels in (1, 3):
        side = math.isqrt(values // channels)
        if side > 3 and side * side * channels == values:
            yield Input((channels, side, side))


def _all_of(usual: tuple[int, ...]) -> Iterator[int]:
    """The usual sizes first, then every other one."""
    yield from usual
    yield from (side for side in range(1, _MOST_SIDE) if side not in usual)
