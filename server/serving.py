"""`serve` checks everything first, then runs one supervisor around one TorchServe until it is asked to stop."""

import os
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from socket import gethostname

from marina.config.errors import InputError, as_input_error
from marina.config.handler_metrics import torchserves_names
from marina.config.mar import open_mar
from marina.config.record import Record, file_sha256
from marina.config.render import Ports
from marina.config.requirements import WHEELS, installed_requirements
from marina.config.signatures import check_signatures
from marina.config.spec import Spec
from marina.server.java.checks import (
    MAX_CONNECTIONS,
    check_disk_space,
    check_package,
    check_ports,
    check_temporary_folder,
    connection_limit,
    find_java,
)
from marina.server.java.child import Child
from marina.server.java.door import Door
from marina.server.java.follow import RequestLog
from marina.server.java.frontend import Frontend
from marina.server.java.launch import Launch, plan_launch
from marina.server.java.traffic import Traffic
from marina.server.pages import body_types, door_pages
from marina.server.supervisor import Supervisor
from marina.server.system.output import LogFile, Output, Sink, log_line
from marina.server.system.processes import adopt_orphans
from marina.server.system.rundir import create_run_directory, frozen_file, temporary_parent
from marina.server.system.signals import Signals
from marina.server.system.sockets import reachable_host
from marina.server.tracing import Tracer, check_sdk
from marina.server.watching import openmetrics
from marina.server.watching.disk import Disk
from marina.server.watching.handler_metrics import HandlerMetrics
from marina.server.watching.health import Health
from marina.server.watching.latencies import TIMES_FOLDER, LatenciesPage
from marina.server.watching.metrics import MetricsPage, ServerFacts
from marina.server.watching.pages import PageResponse, json_response, serve_pages
from marina.server.watching.probe import Prober
from marina.server.watching.renewals import Renewals
from marina.server.watching.starting import phases
from marina.server.watching.worker_metrics import WorkerMetrics

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# How long a stop waits for the spans of the last answers.
_LAST_SPANS_S = 1.0
_LEVELS = {"error: ": "ERROR", "warning: ": "WARN"}


def serve(
    spec: Spec,
    *,
    mar: Path,
    port_base: int = 8080,
    host: str = "127.0.0.1",
    docs: bool = False,
    log_file: Path | None = None,
    signatures: Path | None = None,
) -> int:
    """Runs a server and blocks until it has ended. Returns one of `Exit`; raises MarinaError if a check fails, before
    anything was started.

    Inference and the supervisor's pages listen on `host`, and nothing else listens. `docs` adds the page for trying the
    model to the port of inference; `log_file` also receives the log, for a sidecar that ships it; what `serving.verify`
    demands is checked if `signatures` is the folder in which it is. Must run in the main thread, because it handles
    SIGTERM and SIGINT."""
    began = time.monotonic()
    ports, java = Ports(port_base), find_java()
    record = check_package(spec, mar)
    check_ports(ports, host)
    check_temporary_folder(temporary_parent())
    check_disk_space(mar, temporary_parent())
    check_sdk(spec)
    sink, sha256 = _log_sink(log_file), file_sha256(mar)
    if signatures and spec.serving.verify:
        check_signatures(spec, signatures, sha256)
    with open_mar(mar) as archive:
        sample = archive.read(record.sample.file)
        declared = record.archive and record.archive.metrics
        metrics = archive.read(declared).decode() if declared else None
    directory = create_run_directory()
    try:
        requirements = None
        if record.requirements is not None:
            hint = f"put `{WHEELS}` of the build folder beside it, or marina package {spec.file}; a pod: marina image"
            requirements = installed_requirements(
                record.requirements, mar.parent / WHEELS, spare=directory.path, hint=hint
            )
        launch = plan_launch(
            spec,
            mar=mar,
            ports=ports,
            host=host,
            directory=directory.path,
            java=java,
            sha256=sha256,
            requirements=requirements,
            # The sample's content type comes first: error messages suggest the first one.
            types=tuple(dict.fromkeys((record.sample.content_type, *body_types(record)))),
            pages=door_pages(record, sample, ports=ports, sha256=sha256, docs=docs),
            metrics=metrics,
        )
        output = Output(sink)
        server = _ModelServer(spec, launch, record=record, sample=sample, docs=docs, output=output)
        try:
            return server.run(began)
        finally:
            server.close()
    finally:
        directory.close()


class _ModelServer:
    """All parts of one running server. Java is started first, because it takes the longest."""

    def __init__(
        self,
        spec: Spec,
        launch: Launch,
        *,
        record: Record,
        sample: bytes,
        docs: bool,
        output: Output,
    ) -> None:
        self._spec, self._launch, self._record, self._docs = spec, launch, record, docs
        ports = launch.ports
        self._output, self._signals = output, Signals()
        self._say(f"loading {spec.name} {spec.version}, workers × threads {spec.workers} × {spec.threads} …")
        adopt_orphans()
        traffic, health = Traffic(spec), Health(spec.workers)
        frontend = Frontend(spec.url_name, ports, launch.address, launch.directory)
        try:
            door = Door(launch.address, ports.inference)
        except OSError as err:
            raise _port_taken(ports.inference, "inference", err) from err
        self._tracer, self._traffic = None, traffic
        if spec.tracing:
            at = f"{gethostname()}:{ports.inference}"
            self._tracer = Tracer(
                spec,
                spec.tracing,
                launch.directory,
                instance=at,
                port=ports.inference,
                is_inference=traffic.is_inference,
                say=self._say,
            )
        trace = self._tracer.take if self._tracer else None
        self._child = Child(launch, door, traffic=traffic, log=RequestLog(spec), output=self._output, trace=trace)
        self._java_at = time.monotonic()
        health.java_pid = self._child.pid
        timeout_s, gpu = spec.serving.response_timeout_s, record.device == "cuda"
        asked = sample, record.sample.content_type
        prober = Prober(frontend, health, traffic, asked, timeout_s=timeout_s, gpu=gpu)
        renewals = Renewals(
            spec.serving, launch.directory / "renew", health, request_inference=prober.request_inference, say=self._say
        )
        self._disk = Disk(launch.directory, say=self._say)
        self._facts = ServerFacts(
            sha256=launch.sha256,
            java_pid=self._child.pid,
            renewed=lambda: renewals.renewed,
            renewals_failed=lambda: renewals.failed,
            dropped_lines=lambda: self._output.dropped,
            disk_free_bytes=self._disk.free_bytes,
            spans_sent=tracer.sent if (tracer := self._tracer) else lambda: 0,
            spans_lost=tracer.lost if tracer else lambda: 0,
        )
        if (limit := connection_limit()) < MAX_CONNECTIONS:
            self._say(f"warning: {limit} connections at once instead of {MAX_CONNECTIONS:,}: the limit on open files")
        metrics = WorkerMetrics(launch.directory / "metrics", say=self._say)
        handler = None
        if spec.model.adopted:
            handler = HandlerMetrics(torchserves_names(), say=self._say)
        self._page = MetricsPage(spec, frontend, self._child.door, traffic, health, metrics, self._facts, handler)
        times = launch.directory / TIMES_FOLDER
        self._latencies = LatenciesPage(traffic, health, launch.sha256, time.time(), lambda: renewals.renewed, times)
        self._supervisor = Supervisor(
            child=self._child,
            signals=self._signals,
            health=health,
            prober=prober,
            port=ports.inference,
            renewals=renewals,
            say=self._say,
            send_last_spans=self._send_last_spans,
        )

    def run(self, began: float) -> int:
        """Blocks until the server has ended; `began` is the monotonic time at which `serve` was called."""

        def ready() -> None:
            now = time.monotonic()
            self._facts.ready_after_s = now - began
            self._facts.phases = phases(self._launch.directory, began=began, java=self._java_at, ready=now)
            self._announce(self._facts.ready_after_s)

        port = self._launch.ports.supervisor
        try:
            routes, in_openmetrics = self._routes(), {}
            if self._tracer:
                # Only traces give it anything to say that the usual form does not.
                in_openmetrics["/metrics"] = self._openmetrics
            pages = serve_pages(self._launch.address, port, routes, in_openmetrics)
        except OSError as err:
            raise _port_taken(port, "supervisor", err) from err
        try:
            return self._supervisor.run(self._spec, ready=ready)
        finally:
            pages.shutdown()
            pages.server_close()

    def _send_last_spans(self) -> None:
        if self._tracer:
            counted = self._supervisor.count()
            logged = counted.logged if counted else 0
            self._tracer.finish(lambda: self._traffic.seen >= logged, _LAST_SPANS_S)

    def close(self) -> None:
        """Ends every process and writer thread and restores the signal handlers."""
        self._child.kill()
        if self._tracer:
            self._tracer.close()
        self._output.close()
        self._signals.close()

    def _routes(self) -> dict[str, Callable[[], PageResponse]]:
        supervisor, record = self._supervisor, self._record
        package = {"name": record.name, "version": record.version, "compile": record.compile}
        package |= {"sha256": self._launch.sha256, "mar": str(self._launch.mar)}

        frozen = frozen_file(os.getpid())
        # The folder may be one that outlives a container of the pod.
        frozen.unlink(missing_ok=True)

        def ready() -> PageResponse:
            body = {**supervisor.readiness(), "warnings": self._disk.warnings()}
            is_frozen = supervisor.state == "draining" and frozen.exists()
            return json_response(200 if body["ready"] or is_frozen else 503, body)

        return {
            "/live": lambda: json_response(200, {"live": True, "state": supervisor.state}),
            "/ready": ready,
            "/metrics": lambda: PageResponse(200, self._page.text().encode(), _METRICS_TYPE),
            "/package": lambda: json_response(200, package),
            "/latencies": lambda: json_response(200, self._latencies.data()),
        }

    def _openmetrics(self) -> PageResponse:
        return PageResponse(200, self._page.openmetrics().encode(), openmetrics.CONTENT_TYPE)

    def _announce(self, took_s: float) -> None:
        name = self._spec.load.sample
        file = self._spec.path(name) if name else None
        if file is None or not file.is_file():
            file = self._launch.model / self._record.sample.file
        url = f"http://{reachable_host(self._launch.address)}:{self._launch.ports.inference}"
        body = ["-H", f"Content-Type: {self._record.sample.content_type}", "--data-binary", f"@{file}"]
        self._say(f"ready in {took_s:.1f} s at {url}")
        self._say(shlex.join(["curl", *body, f"{url}/predictions/{self._spec.url_name}"]))
        if self._docs:
            self._say(f"try it at {url}/docs")

    def _say(self, text: str) -> None:
        as_json = self._spec.serving.log == "json"
        level = next((name for start, name in _LEVELS.items() if text.startswith(start)), "INFO")
        # At a terminal, time and level would only be noise.
        plain = sys.stderr.isatty() and not as_json
        self._output.say(f"marina: {text}" if plain else log_line("marina", text, as_json=as_json, level=level))


def _log_sink(file: Path | None) -> Sink | None:
    if file is None:
        return None
    with as_input_error(f"`--log-file`: got `{file}`"):
        return LogFile(sys.stderr.buffer, file)


def _port_taken(port: int, name: str, err: OSError) -> InputError:
    return InputError(f"`--port-base`: port {port} ({name}) was taken in the meantime: {err.strerror}")
