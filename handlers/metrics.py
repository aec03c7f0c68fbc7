"""A worker's metrics for Prometheus. If `PROMETHEUS_MULTIPROC_DIR` is set, they go to files that the supervisor merges;
otherwise they stay in this process. prometheus_client decides that when it is imported, so the variable must be set
before."""

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Literal

import torch
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, values

from marina.handlers.record import PackedRecord
from marina.handlers.tracing import Step
from marina.handlers.validation import ERROR_KINDS

logger = logging.getLogger(__name__)

MULTIPROC_DIR = "PROMETHEUS_MULTIPROC_DIR"
STAGES = ("decode", "model", "encode")
STAGE_BUCKETS = (
    *(0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05),
    *(0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 3.0, 5.0, 10.0),
)
BATCH_BUCKETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128)
_MEMORY_EVERY_S = 1.0
# Room for a few hundred series in each of a worker's files.
_FILE_BYTES = 1 << 17
_FILES = ("counter", "histogram", "gauge_livemax", "gauge_liveall")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass
class BatchReport:
    rows: int
    padding: int = 0
    """Rows that were only padding."""
    seconds: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Time in each of `STAGES`."""
    errors: Sequence[str] = field(default_factory=list)
    """The kind of error of each request that failed."""
    positions: tuple[int, int] = (0, 0)
    """As in `Results.positions`."""
    steps: Mapping[int, Sequence[Step]] = field(default_factory=dict)
    """The steps of each request that passed through them, by its place."""


class Metrics:
    """The metrics of one model. In multiprocess mode they are read from the files; `registry` is for a process that
    shows its own."""

    def __init__(self, record: PackedRecord, kind: str, device: torch.device) -> None:
        if directory := os.environ.get(MULTIPROC_DIR):
            _reserve(Path(directory))
        self.registry = registry = CollectorRegistry()
        self._model, self._device, self._memory_due = record.name, device, 0.0
        stage = Histogram(
            "inference_stage_duration_seconds",
            "Time that a batch spent in a stage of the handler",
            ["model", "stage"],
            buckets=STAGE_BUCKETS,
            registry=registry,
        )
        self._stages = [stage.labels(record.name, name) for name in STAGES]
        self._batch = Histogram(
            "inference_batch_size", "Requests in a batch", ["model"], buckets=BATCH_BUCKETS, registry=registry
        ).labels(record.name)
        text = "Requests answered with an error by the handler, by kind"
        self._errors = Counter("inference_errors", text, ["model", "kind"], registry=registry)
        self.show_errors(ERROR_KINDS)
        self._padding = self._counter("inference_padding_rows", "Rows that were computed and thrown away")
        self._positions = self._padded_positions = None
        if record.lengths is not None:
            text = "Values computed along the dimension that varies, including padding"
            self._positions = self._counter("inference_positions", text)
            text = "Values computed along the dimension that varies that were padding"
            self._padded_positions = self._counter("inference_padding_positions", text)
        self._gauges(record, kind)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, ["model"], registry=self.registry).labels(self._model)

    def _gauges(self, record: PackedRecord, kind: str) -> None:
        facts = {
            "model": record.name,
            "version": record.version,
            "precision": record.precision,
            "compile": record.compile,
            "artifact": kind,
            "device": record.device,
            "torch": torch.__version__,
        }
        text = "1 per artifact in use; `artifact` differs from `compile` where the model was recompiled"
        self._gauge("inference_artifact_info", text, facts, "livemax").set(1)
        model = {"model": record.name}
        self._memory = self._gauge("inference_worker_resident_bytes", "Resident memory of a worker", model, "liveall")
        if self._device.type == "cuda":
            text = "Memory that a worker's torch has reserved on its GPU"
            self._cuda = self._gauge("inference_worker_cuda_bytes", text, model, "liveall")
        self._read_memory()

    def _gauge(self, name: str, text: str, labels: dict[str, str], mode: Literal["livemax", "liveall"]) -> Gauge:
        # `live` gauges are dropped when the worker dies: the supervisor deletes its files.
        return Gauge(name, text, list(labels), registry=self.registry, multiprocess_mode=mode).labels(**labels)

    def record(self, report: BatchReport) -> None:
        # If every answer came from the cache, the batch passed through no stage.
        if any(report.seconds):
            for stage, seconds in zip(self._stages, report.seconds, strict=True):
                stage.observe(seconds)
        self._batch.observe(report.rows)
        if report.padding:
            self._padding.inc(report.padding)
        if self._positions is not None and self._padded_positions is not None:
            self._positions.inc(report.positions[0])
            self._padded_positions.inc(report.positions[1])
        self.count(report.errors)

    def show_errors(self, kinds: Iterable[str]) -> None:
        """Shows these kinds of errors before the first one: Prometheus sees no increase in the first value of a series,
        so it would be invisible."""
        for kind in kinds:
            self._errors.labels(self._model, kind)

    def count(self, errors: Sequence[str]) -> None:
        """Counts errors, given as one kind per failed request, and updates the memory gauges once a second."""
        for kind in errors:
            self._errors.labels(self._model, kind).inc()
        if monotonic() >= self._memory_due:
            self._read_memory()

    def _read_memory(self) -> None:
        self._memory_due = monotonic() + _MEMORY_EVERY_S
        self._memory.set(int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE)
        if self._device.type == "cuda":
            self._cuda.set(torch.cuda.memory_reserved(self._device))


def _reserve(directory: Path) -> None:
    """Reserves disk space for this worker's metric files. They are mapped into memory, and a write to a mapped page for
    which the disk has no room would kill the process. If there is no space, the numbers stay in this process and the
    worker serves anyway."""
    files = [directory / f"{name}_{os.getpid()}.db" for name in _FILES]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for file in files:
            if file.exists():  # from before this worker was renewed
                continue
            # Create it under another name first, because the supervisor cannot read an empty file.
            with file.with_suffix(".new").open("wb") as room:
                os.posix_fallocate(room.fileno(), 0, _FILE_BYTES)
            file.with_suffix(".new").rename(file)
    except OSError as err:
        logger.warning("no disk space for this worker's metrics, so /metrics does not show them: %s", err.strerror)
        values.ValueClass = values.MutexValue
        for file in files:
            file.with_suffix(".new").unlink(missing_ok=True)
