"""A batch of requests through compiled shapes: cut, padded, stacked in buffers that are allocated once.

The cut is the cheapest by what each shape took at warm-up: with shapes 1 and 4 of 5 and 8 ms, three requests run as 4
with one row of padding (8 ms), not as 1+1+1 (15 ms), and five as 4+1 (13 ms). It depends on the number of rows that
arrived, good or bad, and a row keeps its place: kernels of another shape may round differently, so a bad neighbour must
not change the shape that a good request runs in."""

import gc
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter

import numpy as np
import torch

from handlers.arrays import Array, numpy_dtype
from handlers.artifact import Artifact
from handlers.record import RecordError, TensorSpec
from handlers.validation import AnswerError, OutOfMemory

logger = logging.getLogger(__name__)

Row = Sequence[Array]

_TIMED_RUNS = 5
_TIMED_SECONDS = 0.5
_AGREE = 0.03


@dataclass
class Results:
    """One entry per row that arrived; None where there was nothing to run."""

    rows: list[list[Array] | AnswerError | None]
    padding: int = 0


class Batcher:
    def __init__(self, artifact: Artifact, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
        self._artifact = artifact
        self._outputs = outputs
        self._dtypes = [getattr(torch, spec.dtype) for spec in inputs]
        pin = artifact.device.type == "cuda"
        # One set for the largest size; smaller sizes use its first rows, which are contiguous.
        self._largest = max(artifact.batch_sizes)
        self._buffers = [
            torch.full(
                (self._largest, *spec.shape),
                spec.min or 0,
                dtype=torch.float32 if spec.dtype == "bfloat16" else getattr(torch, spec.dtype),
                pin_memory=pin,
            )
            for spec in inputs
        ]
        self._arrays: list[Array] = [buffer.numpy() for buffer in self._buffers]
        self._plans: dict[int, list[int]] = {}
        self.seconds: dict[int, float] = {}

    def warm_up(self) -> None:
        """Runs every shape at least twice, so that ready means ready, and checks and times what comes out."""
        for size in self._artifact.batch_sizes:
            self._check_outputs(self._forward(size), size)
            self.seconds[size] = _fastest(partial(self._forward, size))
            logger.info("warm: batch size %d takes %.2f ms", size, self.seconds[size] * 1e3)

    def run(self, rows: Sequence[Row | None]) -> Results:
        results = Results([None] * len(rows))
        start = 0
        for size in self._plan(len(rows)):
            self._run_chunk(rows, range(start, min(start + size, len(rows))), size, results)
            start += size
        return results

    def _plan(self, count: int) -> list[int]:
        if count not in self._plans:
            self._plans[count] = cheapest_cut(count, self.seconds)
        return self._plans[count]

    def _run_chunk(
        self, rows: Sequence[Row | None], span: range, size: int, results: Results, *, last_try: bool = False
    ) -> None:
        good = [index for index in span if rows[index] is not None]
        if not good:
            return
        try:
            self._fill(rows, span, size, good[0])
            outputs = self._forward(size)
        except Exception as err:
            if is_out_of_memory(err) and not last_try:
                logger.warning("out of memory on a batch of %d, trying smaller ones", size)
                self._split(rows, span, size, results)
            else:
                self._fail(err, good, results)
            return
        results.padding += size - len(good)
        for index in good:
            results.rows[index] = [output[index - span.start] for output in outputs]

    def _split(self, rows: Sequence[Row | None], span: range, size: int, results: Results) -> None:
        gc.collect()
        if self._artifact.device.type == "cuda":
            torch.cuda.empty_cache()
        smaller = max((other for other in self._artifact.batch_sizes if other <= size // 2), default=size)
        for start in range(span.start, span.stop, smaller):
            self._run_chunk(rows, range(start, min(start + smaller, span.stop)), smaller, results, last_try=True)

    def _fill(self, rows: Sequence[Row | None], span: range, size: int, first_good: int) -> None:
        """Padding repeats a row of this batch: zeros, or rows of an earlier batch, could widen the range of a
        dynamically quantised layer and so change the answers."""
        for place in range(size):
            row = rows[span.start + place] if place < len(span) else None
            if row is None:
                row = rows[first_good] or ()
            for array, value in zip(self._arrays, row, strict=True):
                array[place] = value

    def _forward(self, size: int) -> list[Array]:
        inputs = [
            buffer[:size].to(self._artifact.device, dtype, non_blocking=True)
            for buffer, dtype in zip(self._buffers, self._dtypes, strict=True)
        ]
        outputs = [self._to_numpy(output) for output in self._artifact.run(inputs)]
        # A model may return its input, which the next chunk overwrites.
        shared = [any(np.may_share_memory(output, array) for array in self._arrays) for output in outputs]
        return [output.copy() if is_shared else output for output, is_shared in zip(outputs, shared, strict=True)]

    @staticmethod
    def _to_numpy(output: torch.Tensor) -> Array:
        # numpy has no bfloat16. On CUDA the copy also waits for the GPU: times are true and buffers are free again.
        array: Array = (output.float() if output.dtype == torch.bfloat16 else output).cpu().numpy()
        return array

    def _check_outputs(self, outputs: Sequence[Array], size: int) -> None:
        found = [(output.shape, output.dtype) for output in outputs]
        declared = [((size, *spec.shape), numpy_dtype(spec.dtype)) for spec in self._outputs]
        if found != declared:
            raise RecordError(f"`outputs`: the record declares {declared}, the model gave {found}: package again")

    @staticmethod
    def _fail(err: Exception, indexes: Sequence[int], results: Results) -> None:
        logger.error("the model failed on a batch", exc_info=err)
        if isinstance(err, torch.AcceleratorError) and not is_out_of_memory(err):
            # The CUDA context is lost for good: only a new worker helps.
            raise SystemExit("the GPU failed, this worker ends") from err
        for index in indexes:
            results.rows[index] = OutOfMemory() if is_out_of_memory(err) else AnswerError()


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
