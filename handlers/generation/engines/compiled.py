"""`text.engine: aot`: computes the network with the library that the packager compiled for its processor.

The weights are rounded to `model.precision` and laid out once, for any number of rows, in the panels that
`archiver/native/matrices.h` describes."""

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch.nn.functional import pad

from marina.handlers.generation.engines.weights import Weights, rotary_tables

LIBRARY = "decoder.so"
_KINDS = {"fp32": 0, "bf16": 1, "int8": 2, "int4": 3}
_PANEL, _GROUP, _FINE = 16, 64, 32


class _Matrix(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weights", "scales")),
        *((name, ctypes.c_int64) for name in ("outputs", "inputs")),
    )


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, _Matrix) for name in ("query_key_value", "output", "gate_up", "down")),
        *((name, ctypes.c_void_p) for name in ("before_attention", "before_mlp", "bias", "query_norm", "key_norm")),
        *((name, ctypes.c_void_p) for name in ("keys", "values")),
    )


class _Model(ctypes.Structure):
    _fields_ = (
        ("layers", ctypes.POINTER(_Layer)),
        *((name, _Matrix) for name in ("embedding", "head")),
        *((name, ctypes.c_void_p) for name in ("norm", "cosines", "sines")),
        *((name, ctypes.c_int64) for name in ("count", "hidden", "heads", "kv_heads", "size", "inner", "context")),
        *((name, ctypes.c_int64) for name in ("kind", "threads")),
        ("epsilon", ctypes.c_double),
    )


class CompiledDecoder:
    """The network with room for `slots` sequences of `context` tokens."""

    def __init__(self, folder: Path, *, precision: str, slots: int, context: int) -> None:
        # The library needs OpenMP, which the import of torch has loaded.
        self._run = ctypes.CDLL(str(folder / LIBRARY)).decoder_step
        self._run.restype = None
        self._precision = precision
        self._cache_dtype = torch.float32 if precision == "fp32" else torch.bfloat16
        # The library has the addresses of these tensors.
        self._held: list[torch.Tensor] = []
        self._caches: list[torch.Tensor] = []
        weights = Weights(folder, torch.float32)
        shape = weights.shape
        self._cache_shape = (slots, shape.kv_heads, _up(context, _PANEL))
        layers = [self._layer(weights, index) for index in range(shape.layers)]
        # With int4 the embedding and the head have 8 bits: they are few weights, and every answer depends on them.
        outer = "int8" if precision == "int4" else precision
        embedding, head = self._matrix(weights.embedding, outer), weights.head
        cosines, sines = rotary_tables(shape, context)
        self._model = _Model(
            layers=(_Layer * len(layers))(*layers),
            embedding=embedding,
            head=embedding if head is None else self._matrix(head, outer),
            norm=self._address(weights.norm),
            cosines=self._address(cosines),
            sines=self._address(sines),
            count=shape.layers,
            hidden=embedding.inputs,
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            size=shape.head_size,
            inner=layers[0].down.inputs,
            context=context,
            kind=_KINDS[precision],
            threads=torch.get_num_threads(),
            epsilon=shape.norm_eps,
        )

    def step(
        self, tokens: Sequence[int], slots: Sequence[int], positions: Sequence[int], wanted: Sequence[int]
    ) -> torch.Tensor:
        """Computes rows, each of a token at a position of a slot; the rows of a slot come together, in their order.
        Returns the scores after the `wanted` rows."""
        outputs = self._model.head.outputs
        scores = torch.empty(len(wanted), _up(outputs, _PANEL))
        self._run(
            ctypes.byref(self._model),
            (ctypes.c_int64 * len(tokens))(*tokens),
            (ctypes.c_int32 * len(slots))(*slots),
            (ctypes.c_int32 * len(positions))(*positions),
            ctypes.c_int64(len(tokens)),
            (ctypes.c_int64 * len(wanted))(*wanted),
            ctypes.c_int64(len(wanted)),
            ctypes.c_void_p(scores.data_ptr()),
        )
        return scores[:, :outputs]

    def copy(self, source: int, target: int, count: int) -> None:
        """Copies the first `count` tokens of one slot into another, rounded up to whole panels."""
        room = self._cache_shape[2]
        for cache in self._caches:
            end = cache.shape[2] // room * _up(count, _PANEL)
            cache[target, :, :end] = cache[source, :, :end]

    def _cache(self, size: int) -> int:
        """Allocates `size` numbers for every position of every slot and head; returns the address."""
        slots, heads, room = self._cache_shape
        self._caches.append(torch.zeros(slots, heads, room * size, dtype=self._cache_dtype))
        return self._caches[-1].data_ptr()

    def _layer(self, weights: Weights, index: int) -> _Layer:
        layer, size = weights.layer(index), weights.shape.head_size
        return _Layer(
            **{
                name: self._matrix(getattr(layer, name), self._precision)
                for name in ("query_key_value", "output", "gate_up", "down")
            },
            **{
                name: self._address(getattr(layer, name))
                for name in ("before_attention", "before_mlp", "query_norm", "key_norm")
            },
            bias=self._address(None if layer.bias is None else pad(layer.bias, (0, -len(layer.bias) % _PANEL))),
            keys=self._cache(size),
            values=self._cache(_up(size, _PANEL)),
        )

    def _matrix(self, matrix: torch.Tensor, precision: str) -> _Matrix:
        outputs, inputs = matrix.shape
        matrix = pad(matrix, (0, -inputs % _GROUP, 0, -outputs % _PANEL))
        panels, scales = _LAYOUTS[precision](matrix.view(-1, _PANEL, matrix.shape[1]))
        return _Matrix(self._address(panels), self._address(scales), outputs, inputs)

    def _address(self, tensor: torch.Tensor | None) -> int | None:
        if tensor is None:
            return None
        self._held.append(tensor.contiguous())
        return self._held[-1].data_ptr()


# A matrix as panels of outputs, each with all inputs; and with int8 a scale for each output.
_Layout = tuple[torch.Tensor, torch.Tensor | None]


def _as_fp32(panels: torch.Tensor) -> _Layout:
    return _interleave(panels, 1), None


def _as_bf16(panels: torch.Tensor) -> _Layout:
    return _interleave(panels.to(torch.bfloat16), 2), None


def _as_int8(panels: torch.Tensor) -> _Layout:
    scales = panels.abs().amax(-1) / 127
    whole = (panels / scales.clamp(min=1e-30)[..., None]).round() + 128
    return _interleave(whole.to(torch.uint8), 4), scales.flatten()


def _as_int4(panels: torch.Tensor) -> _Layout:
    count, outputs, inputs = panels.shape
    blocks = panels.view(count, outputs, inputs // _GROUP, 2, _FINE)
    # Four bits have eight steps below zero and seven above it, so the largest weight, of either sign, becomes -8.
    largest = blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True))
    scales = (largest / -8).to(torch.bfloat16)
    steps = blocks / torch.where(scales == 0, 1, scales.float())
    lower, upper = (steps.round().clamp(-8, 7) + 8).to(torch.uint8).unbind(3)
    fours = (lower | upper << 4).view(count, outputs, -1, _FINE // 4, 4).permute(0, 2, 3, 1, 4)
    scale_bytes = scales.squeeze(-1).permute(0, 2, 3, 1).contiguous().view(torch.uint8)
    return torch.cat([scale_bytes.flatten(2), fours.flatten(2)], -1), None


def _interleave(panels: torch.Tensor, inputs: int) -> torch.Tensor:
    """Puts `inputs` neighbouring inputs of each output side by side."""
    return panels.view(*panels.shape[:2], -1, inputs).transpose(1, 2)


_LAYOUTS: dict[str, Callable[[torch.Tensor], _Layout]] = {
    "fp32": _as_fp32,
    "bf16": _as_bf16,
    "int8": _as_int8,
    "int4": _as_int4,
}


def _up(value: int, to: int) -> int:
    return value + -value % to
