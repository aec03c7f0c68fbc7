"""A client of TorchServe's Java on this machine: reads the state of its workers and its counters, sends inferences."""

import http.client
import json
import socket
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from marina.config.render import MANAGEMENT, METRICS, Ports
from marina.config.request_headers import UNCACHED, UNTRACED
from marina.server.system.sockets import reachable_host


class NoAnswerError(Exception):
    """TorchServe does not answer: it is not up yet, too busy, or gone. The caller decides what that means."""


@dataclass(frozen=True)
class WorkerStatus:
    """A worker as TorchServe describes it."""

    name: str
    pid: int
    ready: bool


@dataclass(frozen=True)
class ModelStatus:
    """A model as TorchServe describes it; `known` is false if TorchServe has no such model."""

    known: bool
    workers: tuple[WorkerStatus, ...] = ()
    queued: int = 0


@dataclass(frozen=True)
class Counters:
    """TorchServe's own counters of one model, summed over its versions."""

    arrivals: int = 0
    latency_s: float = 0.0
    queue_s: float = 0.0


class Frontend:
    """A client for one model of one TorchServe; `directory` is Java's run directory. It keeps one connection to the
    management API and one to the metrics API. Thread-safe."""

    def __init__(self, name: str, ports: Ports, host: str, directory: Path) -> None:
        self._name = name
        self.port = ports.inference
        self._management = _KeptConnection(directory / MANAGEMENT)
        self._metrics = _KeptConnection(directory / METRICS)
        self._inference = f"{reachable_host(host)}:{ports.inference}"

    def describe(self) -> ModelStatus:
        """The state of the model's workers and of its queue."""
        status, body = self._management.get(f"/models/{self._name}")
        if status == 404:
            return ModelStatus(known=False)
        if status != 200:
            raise NoAnswerError(f"describe answered {status}")
        try:
            data = json.loads(body)[0]
            # `startTime` is of no use: it is not updated when the worker's process is replaced.
            facts = [(str(worker["id"]), int(worker["pid"]), worker["status"] == "READY") for worker in data["workers"]]
            return ModelStatus(
                True, tuple(WorkerStatus(*fact) for fact in facts), int(data["jobQueueStatus"]["pendingRequests"])
            )
        except (ValueError, LookupError) as err:
            raise NoAnswerError(f"TorchServe's description of the model cannot be read: {err}") from err

    def metrics(self) -> str:
        """TorchServe's own page of metrics."""
        status, body = self._metrics.get("/metrics")
        if status != 200:
            raise NoAnswerError(f"metrics answered {status}")
        return body.decode(errors="replace")

    def counters(self, page: str) -> Counters:
        """The counters on a page; arrivals include shed requests, but not requests for unknown models."""
        return read_counters(page, self._name)

    def infer(
        self,
        body: bytes,
        content_type: str,
        *,
        timeout_s: float,
        before: Callable[[str], None],
        refused: Callable[[str], None],
    ) -> int:
        """Sends one inference on a new connection and returns its HTTP status. Calls `before` with the connection's
        local address before the request is sent, and `refused` if the door had no room for the connection, so that
        TorchServe saw nothing of it."""
        connection, client = http.client.HTTPConnection(self._inference, timeout=timeout_s), ""
        try:
            connection.connect()
            address, port, *_ = connection.sock.getsockname()
            client = f"{reachable_host(address)}:{port}"
            before(client)
            headers = UNCACHED | UNTRACED | {"Content-Type": content_type}
            connection.request("POST", f"/predictions/{self._name}", body, headers)
            response = connection.getresponse()
            response.read()
            # TorchServe gives each of its answers an id.
            if "x-request-id" not in response.headers:
                refused(client)
            return response.status
        except (OSError, http.client.HTTPException) as err:
            if client and isinstance(err, ConnectionError):
                refused(client)
            raise NoAnswerError(str(err) or type(err).__name__) from err
        finally:
            connection.close()


def read_counters(page: str, model: str) -> Counters:
    """The counters of `model` on TorchServe's metrics page."""
    # Imported late, because it takes a tenth of a second and Java should be started first.
    from prometheus_client.parser import text_string_to_metric_families

    totals: defaultdict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.labels.get("model_name") == model:
                totals[sample.name] += sample.value
    return Counters(
        arrivals=int(totals["ts_inference_requests_total"]),
        latency_s=totals["ts_inference_latency_microseconds"] / 1e6,
        queue_s=totals["ts_queue_latency_microseconds"] / 1e6,
    )


class LocalConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, file: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._file = str(file)

    def connect(self) -> None:
        """Connects to the socket file."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(self._file)
        except OSError:
            self.close()
            raise


class _KeptConnection:
    """A connection that is opened at its first use, and again after it broke."""

    def __init__(self, file: Path, timeout_s: float = 2.0) -> None:
        self._connection = LocalConnection(file, timeout_s)
        self._lock = threading.Lock()

    def get(self, path: str) -> tuple[int, bytes]:
        with self._lock:
            try:
                self._connection.request("GET", path)
                response = self._connection.getresponse()
                return response.status, response.read()
            except (OSError, http.client.HTTPException) as err:
                self._connection.close()
                raise NoAnswerError(str(err) or type(err).__name__) from err
