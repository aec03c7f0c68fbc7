"""Rules about how the objects fit together: labels, ports, policies, numbers of pods, and the metrics that are read."""

import math
import re
from collections.abc import Collection, Iterator
from urllib.parse import urlsplit

from marina.config.errors import InputError, listed, nearest
from marina.k8s.monitoring import adapter_rules, external_rules, find_series, misuses, selectors
from marina.k8s.verify.objects import LocatedDocument, Objects, Place
from marina.k8s.verify.rule import Level, Remark, Rules

RULES = Rules()
_PORTS = {"http": 80, "https": 443, "redis": 6379, "rediss": 6379}
# How the names of the server's own metrics begin, and of those that are recorded from them.
_OURS = ("inference_", "marina_", "model:", "ts_")


def _matches(selector: Place, labels: dict[str, str]) -> bool:
    """Whether a label selector may match these labels; an empty one matches all, and its expressions are not judged."""
    return selector.given and selector.at("matchLabels").texts.items() <= labels.items()


def _monitored(objects: Objects, monitor: LocatedDocument) -> list[LocatedDocument]:
    """The Services that a ServiceMonitor selects."""
    selector = monitor.root.at("spec", "selector")
    services = objects.of("Service")
    return [service for service in services if _matches(selector, service.root.at("metadata", "labels").texts)]


@RULES.rule(
    "selects-nothing",
    "error",
    what="A NetworkPolicy, budget, monitor or spread constraint does not select the pods, or the Service to scrape.",
    why="It is valid but does nothing: pods are open, not spread, or all evicted at once, or nothing is scraped.",
    fix="use the Deployment's own selector; a ServiceMonitor selects by the labels of the Service itself",
)
def _selects_nothing(objects: Objects) -> Iterator[Remark]:
    paths = {"NetworkPolicy": "podSelector", "PodDisruptionBudget": "selector", "PodMonitor": "selector"}
    of_pods = [document.root.at("spec", paths[document.kind]) for document in objects.of(*paths)]
    of_pods += [constraint.at("labelSelector") for constraint in objects.pod.all("topologySpreadConstraints[]")]
    for selector in of_pods:
        if not _matches(selector, objects.labels):
            yield Remark(selector, "does not match the labels of the pods" if selector.given else "missing")
    for monitor in objects.of("ServiceMonitor"):
        if not _monitored(objects, monitor):
            yield Remark(monitor.root.at("spec", "selector"), "does not match the labels of a Service")


def _ports(objects: Objects) -> list[tuple[str, int]]:
    """Name and number of each port that the containers declare; the name may be empty."""
    declared = [port for container in objects.containers for port in container.all("ports[]")]
    return [(port.at("name").text, port.at("containerPort").number or 0) for port in declared]


def _targets(objects: Objects) -> list[Place]:
    """The fields in which Services and PodMonitors name ports of the pods."""
    ports = [port for service in objects.of("Service") for port in service.root.all("spec.ports[]")]
    targets = [port.at("targetPort") if port.at("targetPort").given else port.at("port") for port in ports]
    monitors = objects.of("PodMonitor")
    return targets + [port for each in monitors for port in each.root.all("spec.podMetricsEndpoints[].port")]


def _named_ports(objects: Objects) -> Iterator[tuple[Place, Collection[str]]]:
    """Every place that names a port, with the names that are there."""
    names = {name for name, _ in _ports(objects) if name}
    yield from ((target, names) for target in _targets(objects))
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        yield objects.server.at(probe, "httpGet", "port"), names
    for monitor in objects.of("ServiceMonitor"):
        services = _monitored(objects, monitor)
        of_services = {port.text for service in services for port in service.root.all("spec.ports[].name")}
        yield from ((port, of_services) for port in monitor.root.all("spec.endpoints[].port") if services)


@RULES.rule(
    "port-unknown",
    "error",
    what="A Service, monitor, probe or scrape annotation names a port that is not there.",
    why="Nothing compares them: the Service has no endpoints, the probe fails, or Prometheus silently scrapes nothing.",
    fix="use the name of a container's port; a ServiceMonitor uses the name of the Service's port",
)
def _unknown_port(objects: Objects) -> Iterator[Remark]:
    numbers = {number for _, number in _ports(objects)}
    for port, names in _named_ports(objects):
        if port.text and port.text not in names:
            near = nearest(port.text, names)
            hint = f"{port.path[-1]}: {near}" if near else None
            yield Remark(port, f"got `{port.text}`, port names there: {listed(names) or 'none'}", hint)
        elif port.number is not None and port.number not in numbers:
            # A container may listen on a port that it does not declare.
            yield Remark(port, f"got {port.number}, the pods declare {listed(numbers)}", level="warning")
    scraped = objects.annotations.at("prometheus.io/port")
    if scraped.given and str(scraped.value) not in map(str, numbers):
        yield Remark(scraped, f"got `{scraped.value}`, the pods declare {listed(numbers)}")


@RULES.rule(
    "route-backend",
    "error",
    what="The HTTPRoute does not lead to the Service, or to a port that the Service does not have.",
    why="The API server accepts it, and the gateway then answers every request with 500 or 503.",
    fix="use the name and port of the Service",
)
def _route(objects: Objects) -> Iterator[Remark]:
    ports = {each.name: [port.value for port in each.root.all("spec.ports[].port")] for each in objects.of("Service")}
    for route in objects.of("HTTPRoute"):
        names = route.root.all("spec.rules[].backendRefs[].name")
        ours = [name for name in names if name.text in ports]
        if not ours:
            text = f"leads to {listed(name.text for name in names) or 'nothing'}, Services here: {listed(ports)}"
            yield Remark(route.root.at("spec", "rules"), text)
        for name in ours:
            port = route.root.at(*name.path[:-1], "port")
            if port.value not in ports[name.text]:
                yield Remark(port, f"got `{port.value}`, the Service has {listed(ports[name.text]) or 'none'}")


@RULES.rule(
    "policy-blocks-port",
    "error",
    what="A NetworkPolicy blocks a port that a Service, a PodMonitor, a Redis or a collector of the spec uses.",
    why="Each object is valid by itself. Clients time out, nothing is scraped, or conversations or traces are lost.",
    fix="an ingress rule with the port of the container, or an egress rule with that of Redis or of the collector",
)
def _blocks(objects: Objects) -> Iterator[Remark]:
    known = dict(_ports(objects))
    collector = [tracing.endpoint] if (tracing := objects.plan.spec.tracing) else []
    addresses = [(url, urlsplit(url)) for url in [*objects.plan.spec.redis, *collector]]
    used = [(url, address.port or _PORTS[address.scheme]) for url, address in addresses]
    for policy in objects.of("NetworkPolicy"):
        spec = policy.root.at("spec")
        types = {entry.text for entry in spec.at("policyTypes").items()} or {"Ingress"}
        if not _matches(spec.at("podSelector"), objects.labels):
            continue
        for port in _targets(objects) if "Ingress" in types else []:
            number = known.get(port.text) if port.number is None else port.number
            if number is not None and not _opens(spec.at("ingress"), known, number):
                yield Remark(port, f"leads to {number}, but no ingress rule of {policy.reference} opens it")
        for url, number in used if "Egress" in types else []:
            if not _opens(spec.at("egress"), known, number):
                # It may be a cache only, and then the pods serve without it.
                yield Remark(spec.at("egress"), f"no rule opens port {number}, which `{url}` needs", level="warning")


def _opens(rules: Place, known: dict[str, int], number: int) -> bool:
    """Whether one of a policy's rules opens a port."""
    for rule in rules.items():
        for port in rule.at("ports").items():
            first, last = port.at("port"), port.at("endPort").number
            low = known.get(first.text) if first.number is None else first.number
            if not first.given or (low is not None and low <= number <= (last or low)):
                return True
        if not rule.at("ports").items():
            return True
    return False


def _least(objects: Objects) -> tuple[int, Place]:
    """The least number of pods, and the field that sets it. By default, KEDA scales to 0."""
    default, field = 1, objects.deployment.at("spec", "replicas")
    for scaler in objects.scalers:
        default, name = (0, "minReplicaCount") if scaler.kind == "ScaledObject" else (1, "minReplicas")
        field = scaler.root.at("spec", name)
    return (default if field.number is None else field.number), field


@RULES.rule(
    "pdb-blocks-drain",
    "error",
    what="A PodDisruptionBudget allows no eviction, or none while the autoscaler is at its minimum.",
    why="Nodes with its pods cannot be drained. kube-linter looks at `replicas`, which an autoscaled Deployment lacks.",
    fix="maxUnavailable: 1, or a higher minimum of the autoscaler",
)
def _blocks_drain(objects: Objects) -> Iterator[Remark]:
    least, cause = _least(objects)
    for budget in objects.of("PodDisruptionBudget"):
        away = budget.root.at("spec", "maxUnavailable")
        field = away if away.given else budget.root.at("spec", "minAvailable")
        percent = re.fullmatch(r"([0-9]{1,9})%", field.text)
        # Kubernetes rounds both up: `minAvailable: 60%` of two pods keeps both.
        number = math.ceil(int(percent[1]) * least / 100) if percent else field.number
        if number is not None and 0 < least <= (kept := least - number if away.given else number):
            why = f"`{cause.field}` of {cause.document.reference} is {least}"
            yield Remark(field, f"keeps {kept} of {least} pods, as {why}: none can be evicted")


@RULES.rule(
    "replicas-owned",
    "error",
    what="`spec.replicas` is set although an autoscaler sets the number of pods.",
    why="Each object is valid by itself. Every apply resets the service to that number, even under full load.",
    fix="delete `spec.replicas`",
)
def _owned(objects: Objects) -> Iterator[Remark]:
    replicas = objects.deployment.at("spec", "replicas")
    for scaler in objects.scalers if replicas.given else ():
        yield Remark(replicas, f"got {replicas.value}, but {scaler.reference} scales it")


@RULES.rule(
    "scaler-target",
    "error",
    what="The autoscaler scales something else than the Deployment, or reads the cpu of a container that is not there.",
    why="The API server does not look it up: nothing scales, and only the autoscaler's events say so.",
    fix="scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: NAME}, and the name of the server's container",
)
def _target(objects: Objects) -> Iterator[Remark]:
    containers = {container.at("name").text for container in objects.containers}
    workload = objects.plan.workload
    wanted = {"apiVersion": workload.api_version, "kind": workload.kind, "name": objects.plan.name}
    for scaler in objects.scalers:
        for key, value in wanted.items():
            field = scaler.root.at("spec", "scaleTargetRef", key)
            # KEDA assumes a Deployment of apps/v1.
            assumed = scaler.kind == "ScaledObject" and key != "name" and not field.given
            if field.value != value and not assumed:
                yield Remark(field, f"got `{field.value}`, allowed: `{value}`" if field.given else "missing")
        named = scaler.root.all("spec.metrics[].containerResource.container")
        for field in [*named, *scaler.root.all("spec.triggers[].metadata.containerName")]:
            if field.text not in containers:
                yield Remark(field, f"got `{field.value}`, the pods have {listed(containers)}")


@RULES.rule(
    "scaler-bounds",
    "error",
    what="The autoscaler may remove the last pod, or removes pods sooner than new ones could start, or within 60 s.",
    why="Without a pod no requests are counted, so it never comes back; only the evidence says how long a start is.",
    fix="a minimum of 1 pod, and scaleDown: {stabilizationWindowSeconds: 300} or more",
)
def _bounds(objects: Objects) -> Iterator[Remark]:
    slowest = max(int(objects.plan.cold_start_s or 0), 60)
    for scaler in objects.scalers:
        least, field = _least(objects)
        if least == 0:
            yield Remark(field, "got 0" if field.given else "missing, so it is 0", f"{field.path[-1]}: 1")
        keda = ("advanced", "horizontalPodAutoscalerConfig") if scaler.kind == "ScaledObject" else ()
        window = scaler.root.at("spec", *keda, "behavior", "scaleDown", "stabilizationWindowSeconds")
        if window.number is not None and window.number < slowest:
            yield Remark(window, f"got {window.number} s, allowed here: {slowest} s or more", level="warning")


@RULES.rule(
    "metric-misused",
    "error",
    what="A rule or KEDA trigger names a metric or label that the server does not export, or a counter without a rate.",
    why="It is valid PromQL, but the alert never fires, or the autoscaler goes to its largest size and stays there.",
    fix="`rate(COUNTER[5m])`; names and labels as on the page `/metrics`; `--live URL` compares them",
)
def _misused(objects: Objects) -> Iterator[Remark]:
    rules = [rule for document in objects.of("PrometheusRule") for rule in document.root.all("spec.groups[].rules[]")]
    recorded = {rule.at("record").text for rule in rules}
    scaled = objects.of("ScaledObject")
    queries = [query for each in scaled for query in each.root.all("spec.triggers[].metadata.query")]
    for node in [*(rule.at("expr") for rule in rules), *queries]:
        try:
            found = selectors(str(node.value))
        except InputError as err:
            hint = "`promtool check rules FILE`, in the version of your Prometheus, points at the place"
            yield Remark(node, str(err).splitlines()[0], hint, "warning")
            continue
        for selector in dict.fromkeys(found):
            # Others' metrics, which a patch may use, are not in the contract.
            known = find_series(selector.name) is not None or selector.name.startswith(_OURS)
            for fault in misuses(selector, recorded):
                yield Remark(node, fault, level=None if known else "warning")


@RULES.rule(
    "metric-adapter",
    "error",
    what="No rule of prometheus-adapter makes the metric that the autoscaler uses.",
    why="The API server accepts any name. The metric has no value, and nothing scales.",
    fix="use a name that one of the rules in `prometheus/adapter-values.yaml` makes",
)
def _adapter(objects: Objects) -> Iterator[Remark]:
    spec = objects.plan.spec
    made = {str(rule["name"]["as"]) for rule in [*adapter_rules(spec), *external_rules(spec)]}
    for scaler in objects.of("HorizontalPodAutoscaler"):
        for kind in ("external", "object", "pods"):
            for name in scaler.root.all(f"spec.metrics[].{kind}.metric.name"):
                if name.text not in made:
                    # Another server, such as a cloud's, may serve the external metrics.
                    level: Level | None = "warning" if kind == "external" else None
                    yield Remark(name, f"got `{name.value}`, the adapter makes {listed(made)}", level=level)
