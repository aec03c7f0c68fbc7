"""The page of all metrics, as Prometheus text.

It keeps three of TorchServe's own series, those that are useful and correct: the counter of arrivals under its own
name, with the model's real version where TorchServe writes `default`, and the two latency sums, in seconds instead of
microseconds. It leaves out `Requests2XX` and the like (they count probes), gauges of the last request, and host
statistics; the histogram and the workers' metrics are better. `promtool check metrics` finds nothing wrong with the
page."""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from marina.config.latency import EDGES_S
from marina.config.machine import processor_name
from marina.config.spec import Spec
from marina.server.java import Door, Frontend, Traffic
from marina.server.system import open_file_count, resident_bytes
from marina.server.watching.exposition import Labels, family, histogram_family
from marina.server.watching.health import Health
from marina.server.watching.torchserve_counts import TorchServeCounts
from marina.server.watching.worker_metrics import WorkerMetrics

# Within this time, everybody gets the same page: rendering takes about 3 ms and a request to Java.
PAGE_AGE_S = 0.2

Family = tuple[str, str, str, Iterable[tuple[Labels, float]]]


@dataclass
class ServerFacts:
    """Values for the page that other parts of the server count or know."""

    sha256: str = ""
    java_pid: int = 0
    supervisor_pid: int = 0
    renewed: Callable[[], int] = lambda: 0
    renewals_failed: Callable[[], int] = lambda: 0
    dropped_lines: Callable[[], int] = lambda: 0
    disk_free_bytes: Callable[[], int] = lambda: 0
    ready_after_s: float | None = None


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
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _counts: TorchServeCounts = field(init=False)
    _text: str = ""
    _rendered_at: float = -1e9

    def __post_init__(self) -> None:
        self._counts = TorchServeCounts(self.frontend, self.door, self.health)

    def text(self) -> str:
        """The page. Callers that come while it is being rendered wait for it."""
        with self._lock:
            if time.monotonic() - self._rendered_at > PAGE_AGE_S:
                self._text = self._render()
                self._rendered_at = time.monotonic()
            return self._text

    def _render(self) -> str:
        own_open = self.traffic.own_open
        self._counts.refresh()
        # `own_open` may be too high: an inference of ours may have been answered before its log line was read.
        in_flight = max(0, self._counts.open.inferences - own_open)
        families = [*self._torchserve(), *self._states(in_flight), *self._workers(), *self._processes()]
        lines = [line for parts in families for line in family(*parts)]
        return "\n".join([*lines, *self._durations()]) + "\n" + self.workers.page()

    def _torchserve(self) -> list[Family]:
        def counter(name: str, value: float, text: str) -> Family:
            labels = {"model_name": self.spec.name, "model_version": self.spec.version}
            return name, "counter", text, [(labels, value)]

        counters, scope = self._counts.counters, "of all answered requests, including the supervisor's own."
        arrivals = self.traffic.arrivals(counters.arrivals)
        return [
            counter("ts_inference_requests_total", arrivals, "Requests that arrived, shed ones included."),
            counter("ts_inference_latency_seconds_total", counters.latency_s, f"Time in TorchServe {scope}"),
            counter("ts_queue_latency_seconds_total", counters.queue_s, f"Time before a worker {scope}"),
        ]

    def _durations(self) -> list[str]:
        labels = {"model": self.spec.name, "version": self.spec.version}
        return histogram_family(
            "inference_request_duration_seconds",
            "Time from a request's last byte to its answer, as TorchServe's frontend measured it, by status code.",
            EDGES_S,
            [({**labels, "code": code}, histogram) for code, histogram in self.traffic.histograms().items()],
        )

    def _states(self, in_flight: int) -> list[Family]:
        def single(name: str, value: float, text: str) -> Family:
            kind = "counter" if name.endswith("_total") else "gauge"
            return name, kind, text, [({"model": self.spec.name}, value)]

        facts, counts = self.facts, self._counts
        stale = "0 while TorchServe does not answer: its figures are old."
        refused = "Connections refused because no other connection was idle."
        late = "Renewals that a worker did not begin or finish in time."
        package = {"model": self.spec.name, "version": self.spec.version, "sha256": facts.sha256}
        families = [
            single("marina_ready", self.health.ready, "1 while /ready answers 200."),
            single("marina_torchserve_answers", counts.answered, stale),
            single("marina_in_flight", in_flight, "Requests whose client waits for its answer."),
            single("marina_connections", counts.open.connections, "Connections to the inference port."),
            single("marina_connections_refused_total", counts.open.refused, refused),
            single("marina_queued", self.health.queued, "Requests that wait for a worker."),
            single("marina_worker_renewals_total", facts.renewed(), "Workers renewed for their memory."),
            single("marina_worker_renewals_failed_total", facts.renewals_failed(), late),
            single("marina_log_lines_dropped_total", facts.dropped_lines(), "Log lines that nobody read in time."),
            single("marina_disk_free_bytes", facts.disk_free_bytes(), "Free disk space for the server's files."),
            ("marina_package_info", "gauge", "The MAR that is served.", [(package, 1)]),
            ("marina_machine_info", "gauge", "The processor it runs on.", [({"processor": processor_name()}, 1)]),
        ]
        if facts.ready_after_s is not None:
            text = "Time from the supervisor's start to the first readiness."
            families.append(single("marina_start_duration_seconds", round(facts.ready_after_s, 3), text))
        return families

    def _workers(self) -> list[Family]:
        model: Labels = {"model": self.spec.name}
        workers = [({**model, "worker": worker.name}, worker) for worker in self.health.workers()]
        ready, declared = sum(worker.serving for _, worker in workers), self.health.declared
        restarts = [(labels, worker.restarts) for labels, worker in workers]
        memory = [(labels, resident_bytes(worker.pid)) for labels, worker in workers if worker.alive]
        files = [(labels, open_file_count(worker.pid)) for labels, worker in workers if worker.alive]
        return [
            ("marina_workers_declared", "gauge", "Workers the spec asks for.", [(model, declared)]),
            ("marina_workers_ready", "gauge", "Workers that are READY and alive.", [(model, ready)]),
            ("marina_worker_restarts_total", "counter", "Times a worker was started again.", restarts),
            ("marina_worker_resident_memory_bytes", "gauge", "Resident memory of a worker.", memory),
            ("marina_worker_open_files", "gauge", "Open files and connections of a worker.", files),
        ]

    def _processes(self) -> list[Family]:
        pids = {"supervisor": self.facts.supervisor_pid, "torchserve": self.facts.java_pid}
        memory = [({"process": name}, resident_bytes(pid)) for name, pid in pids.items()]
        files = [({"process": name}, open_file_count(pid)) for name, pid in pids.items()]
        return [
            ("marina_resident_memory_bytes", "gauge", "Resident memory of Java and the supervisor.", memory),
            ("marina_open_files", "gauge", "Open files and connections of Java and the supervisor.", files),
        ]
