"""How many pods a metric asks for, as Kubernetes computes it (`replica_calculator.go`): with pods that have no reading,
and with pods that are not ready yet."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from k8s.simulating.hpa import Hpa, Metric

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
    """When it became ready, or not ready, last."""


@dataclass(frozen=True)
class Reading:
    """A metric of a pod: its value, and over which seconds that was taken."""

    value: float
    at_s: float = 0.0
    window_s: float = 0.0


Readings = Mapping[str, Reading]


@dataclass(frozen=True)
class _Groups:
    """Pods by what their readings are good for."""

    values: dict[str, int]
    unready: list[str]
    missing: list[str]


def wish(
    metric: Metric, hpa: Hpa, replicas: int, pods: Iterable[PodState], readings: Readings, now_s: float
) -> int | None:
    """Pods that a metric of pods asks for; None where it has no value."""
    resource = metric.kind == "Resource"
    groups = _grouped(pods, readings, now_s, cpu=resource and metric.name == "cpu")
    if not groups.values:
        return None
    target = round(metric.target * (1 if resource else _MILLI))
    # A resource is in thousandths of the request, its target in percent of it; what is missing counts as all of it.
    stand_in = max(100, target) * _MILLI // 100 if resource else target
    ratio = _ratio(groups.values, target, resource=resource)
    unready_count = bool(groups.unready) and ratio > 1.0
    if not unready_count and not groups.missing:
        return replicas if _within(hpa, ratio) else math.ceil(ratio * len(groups.values))
    values = dict(groups.values)
    if ratio != 1.0:
        values |= dict.fromkeys(groups.missing, stand_in if ratio < 1.0 else 0)
    if unready_count:
        values |= dict.fromkeys(groups.unready, 0)
    again = _ratio(values, target, resource=resource)
    if _within(hpa, again) or (ratio < 1.0 < again) or (again < 1.0 < ratio):
        return replicas
    wanted = math.ceil(again * len(values))
    # What was filled in must not turn the direction round.
    return replicas if (again < 1.0 and wanted > replicas) or (again > 1.0 and wanted < replicas) else wanted


def external_wish(metric: Metric, hpa: Hpa, replicas: int, total: float | None) -> int | None:
    """Pods that a sum over all pods asks for (`External`, `AverageValue`); None where it has no value."""
    if total is None:
        return None
    usage, target = int(total * _MILLI), round(metric.target * _MILLI)
    return replicas if replicas and _within(hpa, usage / (target * replicas)) else math.ceil(usage / target)


def _within(hpa: Hpa, ratio: float) -> bool:
    return 1.0 - hpa.down.tolerance <= ratio <= 1.0 + hpa.up.tolerance


def _ratio(values: Mapping[str, int], target: int, *, resource: bool) -> float:
    """Of usage to target, in whole numbers as the controller counts."""
    mean = sum(values.values()) // len(values)
    return (mean * 100 // _MILLI if resource else mean) / target


def _grouped(pods: Iterable[PodState], readings: Readings, now_s: float, *, cpu: bool) -> _Groups:
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
            groups.values[pod.name] = int(reading.value * _MILLI)  # as adapters cut it
    return groups


def _too_young(pod: PodState, reading: Reading, now_s: float) -> bool:
    """Whether a reading of the cpu is that of a start, not of serving."""
    if pod.started_s is None:
        return True
    if pod.started_s + CPU_INITIALIZATION_S > now_s:
        return not pod.ready or reading.at_s < pod.ready_changed_s + reading.window_s
    return not pod.ready and pod.started_s + INITIAL_READINESS_S > pod.ready_changed_s
