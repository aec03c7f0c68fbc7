"""Runs a batch of requests in the compiled shapes: cuts it into chunks, pads them, and stacks them in buffers that are
allocated once.

The cut is the cheapest one by the times that each shape took at warm-up. If batch size 1 takes 5 ms and batch size 4
takes 8 ms, then three requests run as 4, with one row of padding (8 ms), not as 1+1+1 (15 ms), and five run as 4+1 (13
ms). Rows that cannot be answered are left out before the cut, so they cost the others nothing."""

import gc
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter

import numpy as np
import torch

from marina.handlers.arrays import Array, numpy_dtype
from marina.handlers.artifact import LoadedArtifact
from marina.handlers.lengths import SHORTEST, Chunk, Shape, cheapest_chunks, length_of
from marina.handlers.record import PackedLengths, RecordError, TensorSpec
from marina.handlers.validation import AnswerError, OutOfMemory

logger = logging.getLogger(__name__)

Row = Sequence[Array]

_TIMED_RUNS = 5
_TIMED_SECONDS = 0.5
_SAME_WITHIN = 0.03
# A smaller batch size may by chance measure longer than a larger one, by up to this factor or these seconds.
_NOISE_FACTOR, _NOISE_S = 1.25, 2e-4


@dataclass
class Results:
    """The outputs or the error of each row of a batch; None for a row that was not run."""

    rows: list[list[Array] | AnswerError | None]
    padding: int = 0
    positions: tuple[int, int] = (0, 0)
    """Positions computed along the dimension that varies, and how many of them were padding."""


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
        # The model's arguments: the inputs of a request, and the mask if the model has one.
        self._arguments = list(inputs)
        if lengths is not None and lengths.mask is not None:
            mask = TensorSpec("mask", (lengths.buckets[-1],), lengths.mask_dtype, varies=0)
            self._arguments.insert(lengths.mask, mask)
        self._smallest, self._largest = min(artifact.batch_sizes), max(artifact.batch_sizes)
        # One buffer per argument, for the largest shape. Smaller shapes use its beginning, so that they are contiguous.
        self._buffers = [
            torch.full(
                (self._largest * math.prod(spec.shape),),
                spec.min or 0,
                dtype=torch.float32 if spec.dtype == "bfloat16" else getattr(torch, spec.dtype),
                pin_memory=artifact.device.type == "cuda",
            )
            for spec in self._arguments
        ]
        self._views: dict[Shape, list[torch.Tensor]] = {}
        self._plans: dict[int, list[int]] = {}
        self._costs: dict[Shape, float] = {}
        self._retry_until = math.inf
        self.seconds: dict[int, float] = {}
        """How long each batch size takes at the largest length."""

    def warm_up(self) -> None:
        """Runs every shape at least twice, so that no request meets a cold one; checks the outputs and takes the
        times."""
        for size in self._artifact.batch_sizes:
            for length in self._lengths:
                self._check_outputs(self._forward(size, length), size, length)
                self._costs[size, length] = _fastest(partial(self._forward, size, length))
                of_length = f", length {length}" if length else ""
                logger.info("warm: batch size %d%s takes %.2f ms", size, of_length, self._costs[size, length] * 1e3)
        for length in self._lengths:
            self.seconds = without_noise({size: self._costs[size, length] for size in self._artifact.batch_sizes})
            self._costs |= {(size, length): seconds for size, seconds in self.seconds.items()}

    def run(self, rows: Sequence[Row | None], retry_until: float = math.inf) -> Results:
        """Runs each row. If the model fails on a chunk, one row may be at fault, for example by an index that is out of
        range. So its rows run again one by one, if that will end before `retry_until`."""
        self._retry_until = retry_until
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
            elif len(chunk.places) > 1 and self._may_retry(err, len(chunk.places)):
                logger.warning("the model failed on a batch of %d, trying its rows one by one", len(chunk.places))
                for place in chunk.places:
                    self._run_chunk(rows, Chunk([place], self._smallest, chunk.length), results, last_try=True)
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

    def _may_retry(self, err: Exception, runs: int) -> bool:
        if isinstance(err, torch.AcceleratorError) or is_out_of_memory(err):
            return False
        return perf_counter() + runs * self.seconds[self._smallest] < self._retry_until

    def _cut_back(self, outputs: Sequence[Array], index: int, row: Row) -> list[Array]:
        """The outputs of one row, without those of its padding."""
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
        """Copies the rows of a chunk into the buffers. Rows of padding repeat the first row: zeros, or rows of an
        earlier batch, could widen the range of a dynamically quantised layer and so change the answers."""
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
        """Views of the buffers, as arguments of this shape."""
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
        # Some models return their input, and the next chunk would overwrite that buffer.
        buffers = [buffer.numpy() for buffer in self._buffers]
        shared = [any(np.may_share_memory(output, array) for array in buffers) for output in outputs]
        return [output.copy() if is_shared else output for output, is_shared in zip(outputs, shared, strict=True)]

    @staticmethod
    def _to_numpy(output: torch.Tensor) -> Array:
        # numpy has no bfloat16. On CUDA the copy also waits for the GPU, so times are right and the buffers are free
        # again.
        array: Array = (output.float() if output.dtype == torch.bfloat16 else output).detach().cpu().numpy()
        return array

    def _check_outputs(self, outputs: Sequence[Array], size: int, length: int) -> None:
        forms = [(output.shape, output.dtype) for output in outputs]
        declared = [((size, *spec.shape_for(length)), numpy_dtype(spec.dtype)) for spec in self._outputs]
        if forms != declared:
            raise RecordError(f"`outputs`: the record declares {declared}, the model returned {forms}: package again")

    @staticmethod
    def _fail(err: Exception, indexes: Sequence[int], results: Results) -> None:
        logger.error("the model failed on a batch", exc_info=err)
        if isinstance(err, torch.AcceleratorError) and not is_out_of_memory(err):
            # The CUDA context is broken for good, and only a new worker gets another.
            raise SystemExit("the GPU failed, this worker ends") from err
        for index in indexes:
            results.rows[index] = OutOfMemory() if is_out_of_memory(err) else AnswerError()


def without_noise(seconds: Mapping[int, float]) -> dict[int, float]:
    """The times of the batch sizes, with noise removed: a smaller size that took only slightly longer than a larger one
    gets the same time. Otherwise chance would choose between them, differently in each worker, and their kernels may
    round differently."""
    settled: dict[int, float] = {}
    larger = math.inf
    for size in sorted(seconds, reverse=True):
        is_noise = larger < seconds[size] < max(larger * _NOISE_FACTOR, larger + _NOISE_S)
        larger = settled[size] = larger if is_noise else seconds[size]
    return settled


def cheapest_cut(count: int, seconds: Mapping[int, float]) -> list[int]:
    """The batch sizes, largest first, that run `count` rows in the least total time, and in fewer runs if times are
    equal."""
    best: list[tuple[float, int, list[int]]] = [(0.0, 0, [])]
    for rows in range(1, count + 1):
        options = ((best[max(0, rows - size)], size) for size in seconds)
        best.append(min((before[0] + seconds[size], before[1] + 1, [*before[2], size]) for before, size in options))
    return sorted(best[count][2], reverse=True)


def is_out_of_memory(err: BaseException) -> bool:
    if isinstance(err, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(err).lower()
    return isinstance(err, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text)


def _fastest(run: Callable[[], object]) -> float:
    """The shortest time of a few runs. Stops at the first run that takes about as long as the fastest before it,
    because every run delays the worker's readiness."""
    times: list[float] = []
    while len(times) < _TIMED_RUNS and sum(times) < _TIMED_SECONDS:
        begun = perf_counter()
        run()
        times.append(perf_counter() - begun)
        if len(times) > 1 and abs(times[-1] / min(times[:-1]) - 1) < _SAME_WITHIN:
            break
    return min(times)
