"""Rules about autoscalers: what they scale, within which bounds, and by which metrics."""

import re
from collections.abc import Iterator

from marina.config.errors import listed
from marina.k8s.verify.application import SCALABLE, Application, least_pods
from marina.k8s.verify.located import LocatedDocument, Place
from marina.k8s.verify.rule import Level, Remark, Scope, Topic, repeated

TOPIC = Topic("Scaling")

# Metrics that only a running server exports.
_OF_SERVERS = re.compile(r"\b(inference|marina|ts)_")
_V1_METRICS = "autoscaling.alpha.kubernetes.io/metrics"
_KEDA_HPA = "advanced.horizontalPodAutoscalerConfig.behavior"


def metric_sources(spec: Place) -> Iterator[tuple[str, Place]]:
    """The metrics of a HorizontalPodAutoscaler: the type of each, and the place that describes it."""
    for metric in spec.at("metrics").items():
        kind = metric.at("type").text
        yield kind, metric.at(kind[:1].lower() + kind[1:])


@TOPIC.rule(
    "replicas-owned",
    "error",
    what="`spec.replicas` is set although an autoscaler sets the number of pods.",
    why="Each object is valid by itself. Every apply resets the service to that number, even under full load.",
    fix="delete `spec.replicas`",
)
def _owned(application: Application, _: Scope) -> Iterator[Remark]:
    for workload in application.workloads:
        replicas, scaler = workload.document.root.at("spec", "replicas"), application.scaler_of(workload)
        if scaler is not None and replicas.given:
            yield Remark(replicas, f"got {replicas.value}, but {scaler.reference} scales it")


@TOPIC.rule(
    "scaler-target",
    "error",
    what="The workload that an autoscaler scales does not exist, or not in that API version.",
    why="The API server does not look it up: nothing scales, and only the autoscaler's events say so.",
    fix="scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: NAME}; if another folder has it, check both as "
    "one",
)
def _target(application: Application, _: Scope) -> Iterator[Remark]:
    for scaler in application.scalers:
        reference, workload = scaler.root.at("spec", "scaleTargetRef"), application.scaled_workload(scaler)
        kind, name = application.scale_target(scaler)
        there = sorted(f"{document.kind}/{document.name}" for document in application.of(*SCALABLE))
        if workload is None and (kind in SCALABLE or not kind):
            text = f"got `{kind}/{name}`, workloads here: {listed(there) or 'none'}"
            yield Remark(reference, text, level=None if there and application.is_whole else "warning")
        elif workload is not None:
            version, wanted = reference.at("apiVersion"), workload.document.api_version
            # The controller of a HorizontalPodAutoscaler reads only the group, and assumes none; KEDA assumes apps/v1.
            same = version.text.rpartition("/")[0] == wanted.rpartition("/")[0]
            if version.value not in (None, wanted) if scaler.kind == "ScaledObject" else not same:
                got = f"got `{version.value}`" if version.given else "missing"
                yield Remark(version, f"{got}, but `{kind}/{name}` is of `{wanted}`", f"apiVersion: {wanted}")


@TOPIC.rule(
    "scaler-twice",
    "error",
    what="Two autoscalers scale the same workload; a ScaledObject creates its own HorizontalPodAutoscaler.",
    why="Each is valid by itself; together they undo each other's decisions, again and again.",
    fix="keep one of them, with the metrics of both",
)
def _twice(application: Application, _: Scope) -> Iterator[Remark]:
    for earlier, scaler in repeated(application.scalers, application.scale_target):
        if earlier.reference != scaler.reference:
            level: Level | None = "warning" if scaler.is_beside(earlier) else None
            yield Remark(
                scaler.root.at("spec", "scaleTargetRef"), f"{earlier.reference} already scales it", level=level
            )


@TOPIC.rule(
    "scaler-bounds",
    "error",
    what="An autoscaler may remove the last pod.",
    why="It scales by requests, and without a pod none are counted: the service never comes back.",
    fix="a minimum of 1 pod",
)
def _bounds(application: Application, _: Scope) -> Iterator[Remark]:
    for scaler in application.scalers:
        (least, low), workload = least_pods(scaler), application.scaled_workload(scaler)
        served = scaler.kind != "ScaledObject" or (workload is not None and application.services_of(workload))
        if least == 0 and served and not _counts_elsewhere(scaler):
            yield Remark(low, "got 0" if low.given else "missing, so it is 0", f"{low.path[-1]}: 1")


def _counts_elsewhere(scaler: LocatedDocument) -> bool:
    """Whether a metric may also have a value while there is no pod, such as the length of a queue."""
    if any(kind in ("External", "Object") for kind, _ in metric_sources(scaler.root.at("spec"))):
        return True
    triggers = scaler.root.at("spec", "triggers").items()
    return any(
        trigger.at("type").text not in ("cpu", "memory", "prometheus")
        or (trigger.at("metadata", "query").given and not _OF_SERVERS.search(trigger.at("metadata", "query").text))
        for trigger in triggers
    )


@TOPIC.rule(
    "cpu-without-request",
    "error",
    what="An autoscaler uses the utilisation of a resource that a container does not request.",
    why="Utilisation is a share of the request: without a request the autoscaler has no value and does nothing.",
    fix="resources: {requests: {cpu: …}} in every container of the pod",
)
def _unrequested(application: Application, _: Scope) -> Iterator[Remark]:
    by_default = {
        (limits.namespace, name)
        for limits in application.of("LimitRange")
        for container in limits.root.all("spec.limits[]")
        if container.at("type").text == "Container"
        for name in container.at("defaultRequest").table | container.at("default").table
    }
    for scaler in application.scalers:
        workload, used = application.scaled_workload(scaler), list(_utilisations(scaler))
        for container in workload.long_lived if workload else []:
            for name, only_in in used:
                resources = container.at("resources")
                if only_in not in ("", container.at("name").text):
                    continue
                if not only_in and workload and workload.pod.at("resources", "requests", name).given:
                    continue
                if not (resources.at("requests", name).given or resources.at("limits", name).given) and (
                    (scaler.namespace, name) not in by_default
                ):
                    yield Remark(resources.at("requests", name), f"missing, but {scaler.reference} scales by it")


def _utilisations(scaler: LocatedDocument) -> Iterator[tuple[str, str]]:
    """The resources whose utilisation an autoscaler uses, each with the name of the container; an empty name means
    all containers."""
    # Without a metric, an autoscaler of Kubernetes scales by cpu. `autoscaling/v1` has others in an annotation.
    others = scaler.root.at("spec", "metrics"), scaler.root.at("metadata", "annotations", _V1_METRICS)
    if scaler.kind == "HorizontalPodAutoscaler" and not any(place.value for place in others):
        yield "cpu", ""
    for kind, metric in metric_sources(scaler.root.at("spec")):
        if kind in ("ContainerResource", "Resource") and metric.at("target", "type").text == "Utilization":
            yield metric.at("name").text, metric.at("container").text
    for trigger in scaler.root.at("spec", "triggers").items():
        # Older versions of KEDA have the type of the target among the metadata.
        target = trigger.at("metricType").text or trigger.at("metadata", "type").text
        if trigger.at("type").text in ("cpu", "memory") and target in ("", "Utilization"):
            yield trigger.at("type").text, trigger.at("metadata", "containerName").text


@TOPIC.rule(
    "scaler-container",
    "error",
    what="An autoscaler uses a metric of a container that the pods do not have.",
    why="The API server does not compare the names: the metric never has a value, and no pod is ever removed.",
    fix="the name of one of the pod's containers, or a metric of type Resource",
)
def _no_container(application: Application, _: Scope) -> Iterator[Remark]:
    for scaler in application.scalers:
        workload = application.scaled_workload(scaler)
        names = [container.at("name").text for container in workload.long_lived] if workload else []
        named = scaler.root.all("spec.metrics[].containerResource.container")
        named += scaler.root.all("spec.triggers[].metadata.containerName")
        for place in named if workload else []:
            if place.text not in names:
                yield Remark(place, f"got `{place.value}`, the pods have {listed(names)}")


@TOPIC.rule(
    "scaler-safety-net",
    "warning",
    what="All metrics of an autoscaler come from the monitoring system.",
    why="While monitoring is down, nothing scales up, however busy the pods are.",
    fix="a second metric, `type: ContainerResource` with cpu; for KEDA a `cpu` trigger, or `fallback`",
)
def _net(application: Application, scope: Scope) -> Iterator[Remark]:
    if scope.plan and scope.plan.cpu_percent is None:
        return
    for document in application.of("HorizontalPodAutoscaler"):
        spec = document.root.at("spec")
        kinds = {kind for kind, _ in metric_sources(spec)}
        if kinds and not kinds & {"ContainerResource", "Resource"}:
            yield Remark(spec.at("metrics"), f"got only {listed(kinds)}")
    for document in application.of("ScaledObject"):
        spec = document.root.at("spec")
        kinds = {trigger.at("type").text for trigger in spec.at("triggers").items()}
        if kinds and not kinds & {"cpu", "memory"} and not spec.at("fallback").given:
            yield Remark(spec.at("triggers"), f"got only {listed(kinds)}, and no `fallback`")


@TOPIC.rule(
    "scaler-memory-only",
    "warning",
    what="Memory is the only metric of an autoscaler.",
    why="A model server's memory does not follow its load: pods are added late and never removed.",
    fix="requests per second and pod, and cpu",
)
def _memory_only(application: Application, _: Scope) -> Iterator[Remark]:
    for scaler in application.scalers:
        spec = scaler.root.at("spec")
        metrics = spec.at("triggers" if scaler.kind == "ScaledObject" else "metrics")
        names = {metric.at("name").text for _kind, metric in metric_sources(spec)}
        names |= {trigger.at("type").text for trigger in spec.at("triggers").items()}
        if names == {"memory"}:
            yield Remark(metrics, "got only `memory`")


@TOPIC.rule(
    "scaler-behavior",
    "error",
    what="An autoscaler's `behavior` forbids adding pods.",
    why="The API server accepts it, and the service never grows: under load, requests are shed or answered late.",
    fix="`selectPolicy: Disabled` for scaling down only",
)
def _behavior(application: Application, _: Scope) -> Iterator[Remark]:
    for direction, rules in _directions(application):
        if direction == "scaleUp" and rules.at("selectPolicy").text == "Disabled":
            yield Remark(rules.at("selectPolicy"), "got `Disabled` for scaling up")


def _directions(application: Application) -> Iterator[tuple[str, Place]]:
    for scaler in application.scalers:
        path = _KEDA_HPA if scaler.kind == "ScaledObject" else "behavior"
        behavior = scaler.root.at("spec", *path.split("."))
        yield from ((direction, behavior.at(direction)) for direction in ("scaleUp", "scaleDown"))


@TOPIC.rule(
    "scaler-flaps",
    "warning",
    what="An autoscaler removes pods within 60 s, sooner than it adds them, or sooner than a new one could start.",
    why="A short dip in traffic removes pods that are needed again at once, and a new one takes a cold start.",
    fix="scaleDown: {stabilizationWindowSeconds: 300} or more, and more than for scaling up",
)
def _flaps(application: Application, scope: Scope) -> Iterator[Remark]:
    cold = (scope.plan.cold_start_s if scope.plan else None) or 0
    rules = list(_directions(application))
    for (_up, up), (_down, down) in zip(rules[::2], rules[1::2], strict=True):
        window = down.at("stabilizationWindowSeconds")
        # By default, Kubernetes waits five minutes before it removes pods, and not at all before it adds some.
        shrinks, grows = window.number, up.at("stabilizationWindowSeconds").number or 0
        least = max(grows, int(cold), 60)
        if shrinks is not None and shrinks < least:
            yield Remark(window, f"got {shrinks} s, allowed here: {least} s or more")
