"""Rules about monitoring: what monitors select and how they read it, and dashboards."""

import json
import re
from collections.abc import Iterator

from marina.config.errors import listed, nearest
from marina.k8s.verify.application import Application, matches
from marina.k8s.verify.located import LocatedDocument, Place
from marina.k8s.verify.rule import Level, Remark, Scope, Topic

TOPIC = Topic("Monitors and dashboards")

_PART = re.compile(r"(\d{1,9})(ms|s|m|h|d|w|y)")
_DURATION = re.compile(rf"({_PART.pattern})+")
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800, "y": 31536000}


def _seconds(node: Place) -> float | None:
    if not _DURATION.fullmatch(node.text):
        return None
    return sum(int(number) * _UNITS[unit] for number, unit in _PART.findall(node.text))


def _endpoints(monitor: LocatedDocument) -> list[Place]:
    spec = monitor.root.at("spec")
    return [*spec.at("endpoints").items(), *spec.at("podMetricsEndpoints").items()]


def _is_elsewhere(monitor: LocatedDocument) -> bool:
    """Whether a monitor selects other namespaces, whose objects need not be here."""
    spaces = monitor.root.at("spec", "namespaceSelector")
    names = [name.text for name in spaces.at("matchNames").items()]
    return spaces.at("any").value is True or bool(names and monitor.namespace not in names)


@TOPIC.rule(
    "monitor-selects-nothing",
    "error",
    what="A ServiceMonitor selects no Service, or a PodMonitor no pod.",
    why="It is valid, but nothing is scraped: no alert fires, and the autoscaler has no metric.",
    fix="a PodMonitor selects by labels of the pods, a ServiceMonitor by labels of the Service itself; if another "
    "folder has them, check both as one",
)
def _monitor(application: Application, _: Scope) -> Iterator[Remark]:
    for monitor in application.of("PodMonitor", "ServiceMonitor"):
        selector = monitor.root.at("spec", "selector")
        if not _is_elsewhere(monitor) and not _scraped(application, monitor):
            wanted = "pod" if monitor.kind == "PodMonitor" else "Service"
            known = application.has_all_pods and (wanted == "pod" or application.of("Service"))
            yield Remark(selector, f"no {wanted} here has these labels", level=None if known else "warning")


def _scraped(application: Application, monitor: LocatedDocument) -> list[set[str]]:
    """The port names of each workload or Service that a monitor selects."""
    selector = monitor.root.at("spec", "selector")
    if monitor.kind == "PodMonitor":
        ports = [list(workload.ports()) for workload in application.selected(selector)]
    else:
        ports = [
            service.root.at("spec", "ports").items()
            for service in application.of("Service")
            if matches(selector, service.root.at("metadata", "labels").texts)
        ]
    return [{port.at("name").text for port in some} for some in ports]


@TOPIC.rule(
    "monitor-port",
    "error",
    what="A monitor names a port that the selected pods or Service do not have.",
    why="Nothing compares the two names: Prometheus silently scrapes nothing.",
    fix="use a port name: of the container for a PodMonitor, of the Service for a ServiceMonitor",
)
def _monitor_port(application: Application, _: Scope) -> Iterator[Remark]:
    for monitor in application.of("PodMonitor", "ServiceMonitor"):
        scraped = _scraped(application, monitor)
        # Prometheus leaves out those that do not have the port, if others have it.
        names = set().union(*scraped) - {""}
        for endpoint in _endpoints(monitor) if scraped else []:
            port = endpoint.at("port")
            if port.text and port.text not in names:
                near = nearest(port.text, names)
                text = f"got `{port.text}`, port names there: {listed(names) or 'none'}"
                # Those that it selects in other namespaces need not be here.
                yield Remark(port, text, near and f"port: {near}", "warning" if _is_elsewhere(monitor) else None)


@TOPIC.rule(
    "monitor-timeout",
    "error",
    what="The timeout of a scrape is longer than its interval.",
    why="The API server accepts the monitor, but the Prometheus operator rejects it: nothing is scraped.",
    fix="`scrapeTimeout` of at most `interval`",
)
def _timeout(application: Application, _: Scope) -> Iterator[Remark]:
    for monitor in application.of("PodMonitor", "ServiceMonitor"):
        for endpoint in _endpoints(monitor):
            timeout, interval = endpoint.at("scrapeTimeout"), endpoint.at("interval")
            longest, between = _seconds(timeout), _seconds(interval)
            if longest is not None and between is not None and longest > between:
                yield Remark(timeout, f"got {timeout.text}, the interval is {interval.text}")


@TOPIC.rule(
    "scrape-annotation",
    "error",
    what="The annotation `prometheus.io/port` names a port that is not declared.",
    why="Nothing checks annotations: Prometheus asks that port and gets no answer.",
    fix="the number of one of the ports",
)
def _annotation(application: Application, _: Scope) -> Iterator[Remark]:
    for workload in application.workloads:
        port = workload.template.at("metadata", "annotations", "prometheus.io/port")
        numbers = {str(declared.at("containerPort").value) for declared in workload.ports()}
        if port.given and numbers and str(port.value) not in numbers:
            # A server may listen on a port that it does not declare; Marina's declares all.
            level: Level | None = None if workload.made_by_marina else "warning"
            yield Remark(port, f"got `{port.value}`, the pods declare {listed(numbers)}", level=level)


@TOPIC.rule(
    "dashboard-invalid",
    "error",
    what="A dashboard's `.json` in a ConfigMap is not JSON.",
    why="A ConfigMap takes any text. Grafana's sidecar drops the dashboard, and only its own log says so.",
    fix="export the dashboard again",
)
def _dashboard(application: Application, _: Scope) -> Iterator[Remark]:
    for document in application.of("ConfigMap"):
        if "grafana_dashboard" in document.root.at("metadata", "labels").table:
            data = document.root.at("data")
            for name in data.table:
                if name.endswith(".json"):
                    try:
                        json.loads(data.at(name).text)
                    except (RecursionError, ValueError) as err:
                        yield Remark(data.at(name), f"not JSON: {err}")
