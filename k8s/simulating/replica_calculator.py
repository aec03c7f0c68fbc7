"""How many pods a metric proposes, as Kubernetes' `replica_calculator.go` computes it, also with pods that have no
metric yet or are not ready."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from marina.k8s.simulating.hpa import Hpa, Metric

# Defaults of kube-controller-manager.
CPU_INITIALIZATION_S = 300.0
INITIAL_READINESS_S = 30.0
_MILLI = 1000


@dataclass(frozen=True)
class PodState:
    """A pod as the controller sees it; times in seconds on the clock of the simulation."""

    name: str
    pending: bool = False
    terminating: bool = False
    started_s: float | None = None
    ready: bool = True
    ready_changed_s: float = 0.0
    """When it last became ready, or stopped being ready."""


@dataclass(frozen=True)
class PodMetric:
    """The value of one metric of one pod, and the time window that it covers."""

    value: float
    at_s: float = 0.0
    window_s: float = 0.0


PodMetrics = Mapping[str, PodMetric]


@dataclass(frozen=True)
class _Groups:
    """The pods, grouped by how their metric counts."""

    values: dict[str, int]
    unready: list[str]
    missing: list[str]


def replicas_for_metric(
    metric: Metric, hpa: Hpa, replicas: int, pods: Iterable[PodState], readings: PodMetrics, now_s: float
) -> int | None:
    """The pods that a pod or resource metric proposes; None if no pod has a value."""
    resource = metric.kind == "Resource"
    groups = _grouped(pods, readings, now_s, cpu=resource and metric.name == "cpu")
    if not groups.values:
        return None
    target = _whole(metric.target * (1 if resource else _MILLI))
    # Usage of a resource is in thousandths of the request, its target in percent. A missing value counts as the whole
    # request, or as the target if that is higher.
    assumed = max(100, target) * _MILLI // 100 if resource else target
    ratio = _ratio(groups.values, target, resource=resource)
    unready_count = bool(groups.unready) and ratio > 1.0
    if not unready_count and not groups.missing:
        return replicas if _within(hpa, ratio) else math.ceil(ratio * len(groups.values))
    values = dict(groups.values)
    if ratio != 1.0:
        values |= dict.fromkeys(groups.missing, assumed if ratio < 1.0 else 0)
    if unready_count:
        values |= dict.fromkeys(groups.unready, 0)
    again = _ratio(values, target, resource=resource)
    if _within(hpa, again) or (ratio < 1.0 < again) or (again < 1.0 < ratio):
        return replicas
    wanted = math.ceil(again * len(values))
    # Assumed values must not reverse the direction.
    return replicas if (again < 1.0 and wanted > replicas) or (again > 1.0 and wanted < replicas) else wanted


def replicas_for_total(metric: Metric, hpa: Hpa, replicas: int, total: float | None) -> int | None:
    """The pods that an external metric, a total over all pods (`AverageValue`), proposes; None if it has no value."""
    if total is None:
        return None
    usage, target = int(total * _MILLI), _whole(metric.target * _MILLI)
    return replicas if replicas and _within(hpa, usage / (target * replicas)) else math.ceil(usage / target)


def _whole(target: float) -> int:
    """Rounded up, as Kubernetes does with a quantity; a float is a little off."""
    return math.ceil(target - 1e-6)


def _within(hpa: Hpa, ratio: float) -> bool:
    return 1.0 - hpa.down.tolerance <= ratio <= 1.0 + hpa.up.tolerance


def _ratio(values: Mapping[str, int], target: int, *, resource: bool) -> float:
    """The mean usage relative to the target, in whole numbers as the controller counts."""
    mean = sum(values.values()) // len(values)
    return (mean * 100 // _MILLI if resource else mean) / target


def _grouped(pods: Iterable[PodState], readings: PodMetrics, now_s: float, *, cpu: bool) -> _Groups:
    groups = _Groups({}, [], [])
    for pod in pods:
        if pod.terminating:
            continue
        reading = readings.get(pod.name)
        if pod.pending:
            groups.unready.append(pod.name)
        elif reading is None:
            groups.missing.append(pod.name)
        elif cpu and _too_young(pod, reading, now_s):
            groups.unready.append(pod.name)
        else:
            groups.values[pod.name] = int(reading.value * _MILLI)  # metric adapters cut off the rest, too
    return groups


def _too_young(pod: PodState, reading: PodMetric, now_s: float) -> bool:
    """Whether a cpu value may come from the pod's start rather than from serving."""
    if pod.started_s is None:
        return True
    if pod.started_s + CPU_INITIALIZATION_S > now_s:
        return not pod.ready or reading.at_s < pod.ready_changed_s + reading.window_s
    return not pod.ready and pod.started_s + INITIAL_READINESS_S > pod.ready_changed_s
