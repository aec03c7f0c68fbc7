"""The page of all metrics, as Prometheus text.

It keeps three of TorchServe's own series, those that are useful and correct: the counter of arrivals under its own
name, with the model's real version where TorchServe writes `default`, and the two latency sums, in seconds instead of
microseconds. Of an archive it also has the metrics that its handler makes with TorchServe. It leaves out `Requests2XX`
and the like (they count probes), gauges of the last request, and host statistics; the histogram and the workers'
metrics are better. `promtool check metrics` finds nothing wrong with the page, except for a handler's names."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

from marina.config.latency import EDGES_S
from marina.config.machine import processor_name
from marina.config.spec import Spec
from marina.server.java.door import Door, NoDoorError, OpenCounts
from marina.server.java.frontend import Counters, Frontend, NoAnswerError
from marina.server.java.traffic import DurationHistogram, Traffic
from marina.server.system.processes import open_file_count, resident_bytes
from marina.server.watching.handler_metrics import HandlerMetrics
from marina.server.watching.health import Health
from marina.server.watching.openmetrics import openmetrics
from marina.server.watching.worker_metrics import WorkerMetrics

if TYPE_CHECKING:
    from prometheus_client import Metric

# Within this time, everybody gets the same page: rendering takes some milliseconds and a request to Java.
PAGE_AGE_S = 0.2
# TorchServe answers in milliseconds, or in hundreds of them under overload. If it has not answered the last question,
# it gets less time for the next.
_PATIENCE_S, _HASTE_S = 2.0, 0.1

Labels = Mapping[str, object]


@dataclass
class ServerFacts:
    """Values for the page that other parts of the server count or know."""

    sha256: str = ""
    java_pid: int = 0
    renewed: Callable[[], int] = lambda: 0
    renewals_failed: Callable[[], int] = lambda: 0
    dropped_lines: Callable[[], int] = lambda: 0
    disk_free_bytes: Callable[[], int] = lambda: 0
    spans_sent: Callable[[], int] = lambda: 0
    spans_lost: Callable[[], int] = lambda: 0
    ready_after_s: float | None = None
    phases: Mapping[str, float] = field(default_factory=dict)
    """How long each phase of the start took, s."""


@dataclass
class MetricsPage:
    """Renders the page; `text` returns one that is at most `PAGE_AGE_S` old."""

    spec: Spec
    frontend: Frontend
    door: Door
    traffic: Traffic
    health: Health
    workers: WorkerMetrics
    facts: ServerFacts
    handler: HandlerMetrics | None = None
    """Of an archive; Marina's handlers count in files (`worker_metrics.py`)."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _counts: _TorchServeCounts = field(init=False)
    _text: str = ""
    _rendered_at: float = -1e9

    def __post_init__(self) -> None:
        self._counts = _TorchServeCounts(self.frontend, self.door, self.health)

    def text(self) -> str:
        """The page. Callers that come while it is being rendered wait for it."""
        with self._lock:
            if time.monotonic() - self._rendered_at > PAGE_AGE_S:
                self._text = self._render()
                self._rendered_at = time.monotonic()
            return self._text

    def openmetrics(self) -> str:
        """The same page as OpenMetrics, with exemplars."""
        return openmetrics(self.text(), self.traffic.histograms())

    def _render(self) -> str:
        # Imported late, because it takes a tenth of a second and Java should be started first.
        from prometheus_client import generate_latest

        own_open = self.traffic.own_open
        self._counts.refresh()
        # `own_open` may be too high: an inference of ours may have been answered before its log line was read.
        in_flight = max(0, self._counts.open.inferences - own_open)
        families = [*self._torchserve(), *self._states(in_flight), *self._workers(), *self._processes()]
        labels = {"model": self.spec.name, "version": self.spec.version}
        histograms = {code: (labels | {"code": code}, each) for code, each in self.traffic.histograms().items()}
        families.append(durations(histograms.values()))
        text = generate_latest(_Collected(families)).decode() + self.workers.page()
        return text + self.handler.page(self._counts.page, text) if self.handler else text

    def _torchserve(self) -> Iterator[Metric]:
        counters, scope = self._counts.counters, "of all answered requests, including the supervisor's own."
        arrivals = self.traffic.arrivals(counters.arrivals)
        labels = {"model_name": self.spec.name, "model_version": self.spec.version}
        arrived, latency, queue = (
            "Requests that arrived, shed ones included.",
            f"Time in TorchServe {scope}",
            f"Time before a worker {scope}",
        )
        yield _family("ts_inference_requests_total", arrived, (labels, arrivals))
        yield _family("ts_inference_latency_seconds_total", latency, (labels, counters.latency_s))
        yield _family("ts_queue_latency_seconds_total", queue, (labels, counters.queue_s))

    def _states(self, in_flight: int) -> Iterator[Metric]:
        facts, counts = self.facts, self._counts
        texts: dict[str, tuple[float, str]] = {
            "ready": (self.health.ready, "1 while /ready answers 200."),
            "torchserve_answers": (counts.answered, "0 while TorchServe does not answer: its figures are old."),
            "in_flight": (in_flight, "Requests whose client waits for its answer."),
            "connections": (counts.open.connections, "Connections to the inference port."),
            "connections_refused_total": (
                counts.open.refused,
                "Connections refused because no other connection was idle.",
            ),
            "queued": (self.health.queued, "Requests that wait for a worker."),
            "worker_renewals_total": (facts.renewed(), "Workers renewed for their memory."),
            "worker_renewals_failed_total": (
                facts.renewals_failed(),
                "Renewals that a worker did not begin or finish in time.",
            ),
            "log_lines_dropped_total": (facts.dropped_lines(), "Log lines that nobody read in time."),
            "disk_free_bytes": (facts.disk_free_bytes(), "Free disk space for the server's files."),
        }
        if self.spec.tracing:
            texts["spans_sent_total"] = facts.spans_sent(), "Spans that the collector has taken."
            texts["spans_lost_total"] = facts.spans_lost(), "Spans that the collector has not taken in time."
        if facts.ready_after_s is not None:
            text = "Time from the supervisor's start to the first readiness."
            texts["start_duration_seconds"] = (round(facts.ready_after_s, 3), text)
        for name, (value, text) in texts.items():
            yield _family(f"marina_{name}", text, ({"model": self.spec.name}, value))
        phases = [({"model": self.spec.name, "phase": name}, round(length, 3)) for name, length in facts.phases.items()]
        if phases:
            text = "Time of each phase of the start, from that of the supervisor's process to the first readiness."
            yield _family("marina_start_phase_duration_seconds", text, *phases)
        package = {"model": self.spec.name, "version": self.spec.version, "sha256": facts.sha256}
        yield _family("marina_package_info", "The MAR that is served.", (package, 1))
        yield _family("marina_machine_info", "The processor it runs on.", ({"processor": processor_name()}, 1))

    def _workers(self) -> Iterator[Metric]:
        model = {"model": self.spec.name}
        workers = [({**model, "worker": worker.name}, worker) for worker in self.health.workers()]
        alive = [(labels, worker.pid) for labels, worker in workers if worker.alive]
        ready, declared = sum(worker.serving for _, worker in workers), self.health.declared
        restarts = [(labels, worker.restarts) for labels, worker in workers]
        memory = [(labels, resident_bytes(pid)) for labels, pid in alive]
        files = [(labels, open_file_count(pid)) for labels, pid in alive]
        yield _family("marina_workers_declared", "Workers the spec asks for.", (model, declared))
        yield _family("marina_workers_ready", "Workers that are READY and alive.", (model, ready))
        yield _family("marina_worker_restarts_total", "Times a worker was started again.", *restarts)
        yield _family("marina_worker_resident_memory_bytes", "Resident memory of a worker.", *memory)
        yield _family("marina_worker_open_files", "Open files and connections of a worker.", *files)

    def _processes(self) -> Iterator[Metric]:
        pids = {"supervisor": os.getpid(), "torchserve": self.facts.java_pid}
        memory = [({"process": name}, resident_bytes(pid)) for name, pid in pids.items()]
        files = [({"process": name}, open_file_count(pid)) for name, pid in pids.items()]
        yield _family("marina_resident_memory_bytes", "Resident memory of Java and the supervisor.", *memory)
        yield _family("marina_open_files", "Open files and connections of Java and the supervisor.", *files)


def durations(samples: Iterable[tuple[Labels, DurationHistogram]]) -> Metric:
    """The histograms of the answers' durations."""
    from prometheus_client.utils import floatToGoString

    text = "Time from a request's last byte to its answer, as TorchServe's frontend measured it, by status code."
    name, edges = "inference_request_duration_seconds", [*map(floatToGoString, (*EDGES_S, float("inf")))]
    family = _family(name, text, kind="histogram")
    for labels, histogram in samples:
        given = {label: str(value) for label, value in labels.items()}
        for edge, count in zip(edges, accumulate(histogram.buckets), strict=True):
            family.add_sample(f"{name}_bucket", given | {"le": edge}, count)
        family.add_sample(f"{name}_count", given, histogram.count)
        family.add_sample(f"{name}_sum", given, histogram.total_s)
    return family


def _family(name: str, text: str, *samples: tuple[Labels, float], kind: str = "") -> Metric:
    from prometheus_client import Metric

    kind = kind or ("counter" if name.endswith("_total") else "gauge")
    family = Metric(name.removesuffix("_total"), text, kind)
    for labels, value in samples:
        family.add_sample(name, {label: str(given) for label, given in labels.items()}, value)
    return family


@dataclass(frozen=True)
class _Collected:
    """What prometheus-client renders: something that can be collected."""

    families: list[Metric]

    def collect(self) -> list[Metric]:
        return self.families


class _TorchServeCounts:
    """The newest counts that TorchServe has given, read in a thread of their own so that a TorchServe that does not
    answer blocks no page. Not thread-safe."""

    def __init__(self, frontend: Frontend, door: Door, health: Health) -> None:
        self._frontend, self._door, self._health = frontend, door, health
        self._thread = ThreadPoolExecutor(1, "torchserve-counts")
        self._question: Future[bool] | None = None
        self.page = ""
        self.counters = Counters()
        self.open = OpenCounts()
        self.answered = True
        """False while the page or the counts are out of date, because the last question was not answered in time."""

    def refresh(self) -> None:
        """Asks for new counts, unless TorchServe is stopped or still owes an answer, and waits a moment for them."""
        if self._health.java_is_stopped:
            self.answered = False
            return
        if self._question is None or self._question.done():
            self._question = self._thread.submit(self._ask)
        done, _ = wait([self._question], timeout=_PATIENCE_S if self.answered else _HASTE_S)
        self.answered = bool(done) and self._question.result()

    def _ask(self) -> bool:
        """Returns true if both were answered. Otherwise TorchServe is not up yet, hangs or is very busy, and the old
        counts stay."""
        answers = 0
        with suppress(NoAnswerError):
            self.page = self._frontend.metrics()
            self.counters = self._frontend.counters(self.page)
            answers += 1
        with suppress(NoDoorError):
            self.open = self._door.count()
            answers += 1
        return answers == 2
