"""A batch of requests through compiled shapes: cut, padded, stacked in buffers that are allocated once.

The cut is the cheapest by what each shape took at warm-up: with shapes 1 and 4 of 5 and 8 ms, three requests run as 4
with one row of padding (8 ms), not as 1+1+1 (15 ms), and five as 4+1 (13 ms). Only rows that can be answered are
looked at: kernels of another shape may round differently, and a bad request must change nothing for its neighbours, nor
cost them anything."""

import gc
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter

import numpy as np
import torch

from handlers.arrays import Array, numpy_dtype
from handlers.artifact import LoadedArtifact
from handlers.lengths import SHORTEST, Chunk, Shape, cheapest_chunks, length_of
from handlers.record import PackedLengths, RecordError, TensorSpec
from handlers.validation import AnswerError, OutOfMemory

logger = logging.getLogger(__name__)

Row = Sequence[Array]

_TIMED_RUNS = 5
_TIMED_SECONDS = 0.5
_AGREE = 0.03
# How much longer a smaller batch size may measure than a larger one, by chance.
_HARDLY, _HARDLY_S = 1.25, 2e-4


@dataclass
class Results:
    """One entry per row that arrived; None where there was nothing to run."""

    rows: list[list[Array] | AnswerError | None]
    padding: int = 0
    positions: tuple[int, int] = (0, 0)
    """Of the dimension that varies: how many were computed, and how many of them were padding."""


class Batcher:
    def __init__(
        self,
        artifact: LoadedArtifact,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        lengths: PackedLengths | None = None,
    ) -> None:
        self._artifact = artifact
        self._inputs, self._outputs = inputs, outputs
        self._mask = lengths.mask if lengths else None
        self._dynamic = lengths is not None and lengths.dynamic
        self._lengths = lengths.buckets if lengths else (0,)
        if self._dynamic:
            self._lengths = tuple(sorted({SHORTEST, *self._lengths}))
        # What the model takes: the mask is not among what requests hold.
        self._arguments = list(inputs)
        if lengths is not None and lengths.mask is not None:
            mask = TensorSpec("mask", (lengths.buckets[-1],), lengths.mask_dtype, varies=0)
            self._arguments.insert(lengths.mask, mask)
        self._largest = max(artifact.batch_sizes)
        # One buffer for the largest shape; smaller ones use its beginning, so that they are contiguous.
        self._buffers = [
            torch.full(
                (self._largest * math.prod(spec.shape),),
                spec.padding,
                dtype=torch.float32 if spec.dtype == "bfloat16" else getattr(torch, spec.dtype),
                pin_memory=artifact.device.type == "cuda",
            )
            for spec in self._arguments
        ]
        self._views: dict[Shape, list[torch.Tensor]] = {}
        self._plans: dict[int, list[int]] = {}
        self._costs: dict[Shape, float] = {}
        self.seconds: dict[int, float] = {}
        """What each batch size takes, at the largest length."""

    def warm_up(self) -> None:
        """Runs every shape at least twice, so that ready means ready, and checks and times what comes out."""
        for size in self._artifact.batch_sizes:
            for length in self._lengths:
                self._check_outputs(self._forward(size, length), size, length)
                self._costs[size, length] = _fastest(partial(self._forward, size, length))
                of_length = f", length {length}" if length else ""
                logger.info("warm: batch size %d%s takes %.2f ms", size, of_length, self._costs[size, length] * 1e3)
        for length in self._lengths:
            self.seconds = without_noise({size: self._costs[size, length] for size in self._artifact.batch_sizes})
            self._costs |= {(size, length): seconds for size, seconds in self.seconds.items()}

    def run(self, rows: Sequence[Row | None]) -> Results:
        results = Results([None] * len(rows))
        good = {place: row for place, row in enumerate(rows) if row is not None}
        for chunk in self._chunks(good):
            self._run_chunk(good, chunk, results)
        return results

    def _chunks(self, rows: Mapping[int, Row]) -> Iterable[Chunk]:
        if self._lengths != (0,):
            lengths = {place: length_of(row, self._inputs) for place, row in rows.items()}
            yield from cheapest_chunks(lengths, self._costs, dynamic=self._dynamic)
            return
        places, start = list(rows), 0
        for size in self._plan(len(places)):
            yield Chunk(places[start : start + size], size)
            start += size

    def _plan(self, count: int) -> list[int]:
        if count not in self._plans:
            self._plans[count] = cheapest_cut(count, self.seconds)
        return self._plans[count]

    def _run_chunk(self, rows: Mapping[int, Row], chunk: Chunk, results: Results, *, last_try: bool = False) -> None:
        try:
            self._fill(rows, chunk)
            outputs = self._forward(chunk.size, chunk.length)
        except Exception as err:
            if is_out_of_memory(err) and not last_try:
                logger.warning("out of memory on a batch of %d, trying smaller ones", chunk.size)
                self._split(rows, chunk, results)
            else:
                self._fail(err, chunk.places, results)
            return
        results.padding += chunk.size - len(chunk.places)
        for index, place in enumerate(chunk.places):
            results.rows[place] = self._cut_back(outputs, index, rows[place])
        if chunk.length:
            computed, padding = results.positions
            filled = sum(length_of(rows[place], self._inputs) for place in chunk.places)
            new = chunk.size * chunk.length
            results.positions = (computed + new, padding + new - filled)

    def _cut_back(self, outputs: Sequence[Array], index: int, row: Row) -> list[Array]:
        """A row's outputs, without what belongs to its padding."""
        length = length_of(row, self._inputs)
        return [
            output[index] if spec.varies is None else output[index][(*[slice(None)] * spec.varies, slice(length))]
            for output, spec in zip(outputs, self._outputs, strict=True)
        ]

    def _split(self, rows: Mapping[int, Row], chunk: Chunk, results: Results) -> None:
        gc.collect()
        if self._artifact.device.type == "cuda":
            torch.cuda.empty_cache()
        half = chunk.size // 2
        smaller = max((other for other in self._artifact.batch_sizes if other <= half), default=chunk.size)
        for start in range(0, len(chunk.places), smaller):
            places = chunk.places[start : start + smaller]
            self._run_chunk(rows, Chunk(places, smaller, chunk.length), results, last_try=True)

    def _fill(self, rows: Mapping[int, Row], chunk: Chunk) -> None:
        """Padding repeats the first row: zeros, or rows of an earlier batch, could widen the range of a dynamically
        quantised layer and so change the answers."""
        arrays = [view.numpy() for view in self._shaped(chunk.size, chunk.length)]
        for index in range(chunk.size):
            row = rows[chunk.places[index if index < len(chunk.places) else 0]]
            values = list(row)
            if self._mask is not None:
                values.insert(self._mask, np.ones(length_of(row, self._inputs), arrays[self._mask].dtype))
            for array, value, spec in zip(arrays, values, self._arguments, strict=True):
                if spec.varies is None:
                    array[index] = value
                    continue
                array[index] = spec.padding
                array[index][(*[slice(None)] * spec.varies, slice(value.shape[spec.varies]))] = value

    def _shaped(self, size: int, length: int) -> list[torch.Tensor]:
        """The buffers as inputs of a shape."""
        if (size, length) not in self._views:
            shapes = [(size, *spec.shape_for(length)) for spec in self._arguments]
            self._views[size, length] = [
                buffer[: math.prod(shape)].view(shape) for buffer, shape in zip(self._buffers, shapes, strict=True)
            ]
        return self._views[size, length]

    def _forward(self, size: int, length: int = 0) -> list[Array]:
        inputs = [
            view.to(self._artifact.device, getattr(torch, spec.dtype), non_blocking=True)
            for view, spec in zip(self._shaped(size, length), self._arguments, strict=True)
        ]
        outputs = [self._to_numpy(output) for output in self._artifact.run(inputs)]
        # A model may return its input, which the next chunk overwrites.
        buffers = [buffer.numpy() for buffer in self._buffers]
        shared = [any(np.may_share_memory(output, array) for array in buffers) for output in outputs]
        return [output.copy() if is_shared else output for output, is_shared in zip(outputs, shared, strict=True)]

    @staticmethod
    def _to_numpy(output: torch.Tensor) -> Array:
        # numpy has no bfloat16. On CUDA the copy also waits for the GPU: times are true and buffers are free again.
        array: Array = (output.float() if output.dtype == torch.bfloat16 else output).cpu().numpy()
        return array

    def _check_outputs(self, outputs: Sequence[Array], size: int, length: int) -> None:
        forms = [(output.shape, output.dtype) for output in outputs]
        declared = [((size, *spec.shape_for(length)), numpy_dtype(spec.dtype)) for spec in self._outputs]
        if forms != declared:
            raise RecordError(f"`outputs`: the record declares {declared}, the model gave {forms}: package again")

    @staticmethod
    def _fail(err: Exception, indexes: Sequence[int], results: Results) -> None:
        logger.error("the model failed on a batch", exc_info=err)
        if isinstance(err, torch.AcceleratorError) and not is_out_of_memory(err):
            # The CUDA context is lost for good: only a new worker helps.
            raise SystemExit("the GPU failed, this worker ends") from err
        for index in indexes:
            results.rows[index] = OutOfMemory() if is_out_of_memory(err) else AnswerError()


def without_noise(seconds: Mapping[int, float]) -> dict[int, float]:
    """The times of batch sizes, but a smaller one that took hardly longer than a larger one took as long: chance would
    choose between them, one way in this worker and another in the next, and their kernels may round differently."""
    settled: dict[int, float] = {}
    larger = math.inf
    for size in sorted(seconds, reverse=True):
        hardly_longer = larger < seconds[size] < max(larger * _HARDLY, larger + _HARDLY_S)
        larger = settled[size] = larger if hardly_longer else seconds[size]
    return settled


def cheapest_cut(count: int, seconds: Mapping[int, float]) -> list[int]:
    """The sizes, largest first, that cover `count` rows in the least summed time; fewer runs where times are equal."""
    best: list[tuple[float, int, list[int]]] = [(0.0, 0, [])]
    for rows in range(1, count + 1):
        options = ((best[max(0, rows - size)], size) for size in seconds)
        best.append(min((before[0] + seconds[size], before[1] + 1, [*before[2], size]) for before, size in options))
    return sorted(best[count][2], reverse=True)


def is_out_of_memory(err: Exception) -> bool:
    if isinstance(err, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(err).lower()
    return isinstance(err, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text)


def _fastest(run: Callable[[], object]) -> float:
    """The least time of a few runs; one that took as long as the fastest before it is the last, for every run is time
    until the worker is ready."""
    times: list[float] = []
    while len(times) < _TIMED_RUNS and sum(times) < _TIMED_SECONDS:
        begun = perf_counter()
        run()
        times.append(perf_counter() - begun)
        if len(times) > 1 and abs(times[-1] / min(times[:-1]) - 1) < _AGREE:
            break
    return min(times)
