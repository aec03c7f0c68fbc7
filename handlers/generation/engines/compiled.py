"""`text.engine: aot`: the network by the library that the packager compiled for its processor.

Weights are laid out once, in panels as `archiver/native/decoder.cpp` reads them, and serve every number of rows."""

import ctypes
from collections.abc import Sequence
from pathlib import Path

import torch
from torch.nn.functional import pad

from handlers.generation.engines.network import Weights, turns

LIBRARY = "decoder.so"
_KINDS = {"fp32": 0, "bf16": 1, "int8": 2}
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.bfloat16}
_PANEL, _GROUP = 16, 64
_LARGEST = 127


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
        # torch, which is there by now, has brought the OpenMP that the library needs.
        self._run = ctypes.CDLL(str(folder / LIBRARY)).decoder_step
        self._run.restype = None
        self._precision = precision
        # Whatever the library has the address of.
        self._held: list[torch.Tensor] = []
        self._caches: list[torch.Tensor] = []
        weights = Weights(folder, torch.float32)
        shape = weights.shape
        self._cache_places = (slots, shape.kv_heads, _up(context, _PANEL))
        layers = [self._layer(weights, index) for index in range(shape.layers)]
        embedding, head = self._matrix(weights.embedding), weights.head
        cosines, sines = turns(shape, context)
        self._model = _Model(
            layers=(_Layer * len(layers))(*layers),
            embedding=embedding,
            head=embedding if head is None else self._matrix(head),
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
        """Computes rows, each a token of a slot at a position, those of a slot together and in their order; the scores
        after the `wanted` of them."""
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

    def copy(self, source: int, place: int, count: int) -> None:
        """The first tokens of a slot into another, whole blocks of them."""
        room = self._cache_places[2]
        for cache in self._caches:
            end = cache.shape[2] // room * _up(count, _PANEL)
            cache[place, :, :end] = cache[source, :, :end]

    def _cache(self, size: int) -> int:
        """Room for so many numbers of every position and head."""
        slots, heads, room = self._cache_places
        self._caches.append(torch.zeros(slots, heads, room * size, dtype=_DTYPES[self._precision]))
        return self._caches[-1].data_ptr()

    def _layer(self, weights: Weights, index: int) -> _Layer:
        layer, size = weights.layer(index), weights.shape.head_size
        return _Layer(
            **{name: self._matrix(getattr(layer, name)) for name in ("query_key_value", "output", "gate_up", "down")},
            **{
                name: self._address(getattr(layer, name))
                for name in ("before_attention", "before_mlp", "query_norm", "key_norm")
            },
            bias=self._address(None if layer.bias is None else pad(layer.bias, (0, -len(layer.bias) % _PANEL))),
            keys=self._cache(size),
            values=self._cache(_up(size, _PANEL)),
        )

    def _matrix(self, matrix: torch.Tensor) -> _Matrix:
        outputs, inputs = matrix.shape
        matrix = pad(matrix, (0, -inputs % _GROUP, 0, -outputs % _PANEL))
        if self._precision == "fp32":
            panels = matrix.view(-1, _PANEL, matrix.shape[1]).transpose(1, 2)
            return _Matrix(self._address(panels), None, outputs, inputs)
        scales = None
        if self._precision == "int8":
            scales = matrix.abs().amax(1) / _LARGEST
            whole = (matrix / scales.clamp(min=1e-30)[:, None]).round().to(torch.int8)
        else:
            whole = matrix.to(torch.bfloat16)
        pairs = whole.view(-1, _PANEL, matrix.shape[1] // 2, 2).transpose(1, 2)
        return _Matrix(self._address(pairs), self._address(scales), outputs, inputs)

    def _address(self, tensor: torch.Tensor | None) -> int | None:
        if tensor is None:
            return None
        self._held.append(tensor.contiguous())
        return self._held[-1].data_ptr()


def _up(value: int, to: int) -> int:
    return value + -value % to
