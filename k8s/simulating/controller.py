"""The HorizontalPodAutoscaler's controller: the pods that each metric proposes, as Kubernetes' `replica_calculator.go`
computes them, and the number of pods that `horizontal.go` makes of them, by stabilization windows and policies."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from marina.k8s.simulating.hpa import Hpa, Metric, Policy, ScalingRules

# The controller's sync period, in seconds.
SYNC_S = 15
# Defaults of kube-controller-manager.
CPU_INITIALIZATION_S = 300.0
INITIAL_READINESS_S = 30.0
_MILLI = 1000


@dataclass(frozen=True)
class PodState:
    """A pod as the controller sees it; times in seconds on the clock of the simulation."""

    name: str
    pending: bool = False
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


class Controller:
    """Remembers its recommendations and how it scaled, as the real controller does."""

    def __init__(self, hpa: Hpa) -> None:
        self._hpa = hpa
        self._recommended: list[tuple[float, int]] = []
        self._added: list[tuple[float, int]] = []
        self._removed: list[tuple[float, int]] = []

    def decide(
        self,
        now_s: float,
        replicas: int,
        pods: Iterable[PodState],
        readings: Mapping[str, PodMetrics],
        totals: Mapping[str, float | None],
    ) -> int:
        """One sync: decides from each pod metric's `readings` and each external metric's total. The caller then scales,
        and reports it with `scale`."""
        hpa, known = self._hpa, list(pods)
        if not self._recommended:
            self._recommended.append((now_s, replicas))
        # A user who scales to 0 switches the autoscaler off.
        if not replicas and hpa.low:
            return 0
        if not hpa.low <= replicas <= hpa.high:
            return min(max(replicas, hpa.low), hpa.high)
        proposals = [self._proposal(metric, now_s, replicas, known, readings, totals) for metric in hpa.metrics]
        given = [proposal for proposal in proposals if proposal is not None]
        most = max(given, default=None)
        # While one metric has no value, the others may add pods but not remove any.
        if most is None or (len(given) < len(proposals) and most < replicas):
            return replicas
        return self._limited(now_s, replicas, self._stabilized(now_s, replicas, most))

    def scale(self, now_s: float, before: int, after: int) -> None:
        """Remembers that the pods were scaled; the policies count it."""
        if after == before:
            return
        events, rules = (self._added, self._hpa.up) if after > before else (self._removed, self._hpa.down)
        longest = max((policy.period_s for policy in rules.policies), default=0)
        # The new event replaces one that is too old for the policies of its direction, even though those of the other
        # direction may still count that one.
        old = [index for index, (at, _) in enumerate(events) if at < now_s - longest]
        event = (now_s, abs(after - before))
        if old:
            events[old[-1]] = event
        else:
            events.append(event)

    def _proposal(
        self,
        metric: Metric,
        now_s: float,
        replicas: int,
        pods: list[PodState],
        readings: Mapping[str, PodMetrics],
        totals: Mapping[str, float | None],
    ) -> int | None:
        if metric.kind == "External":
            return replicas_for_total(metric, self._hpa, replicas, totals.get(metric.name))
        return replicas_for_metric(metric, self._hpa, replicas, pods, readings.get(metric.name, {}), now_s)

    def _stabilized(self, now_s: float, replicas: int, proposed: int) -> int:
        """Scales up to the lowest recommendation in the window for up, down to the highest in the window for down."""
        longest = max(self._hpa.up.window_s, self._hpa.down.window_s)
        self._recommended = [(at, pods) for at, pods in self._recommended if at >= now_s - longest]
        up = min([proposed, *(pods for at, pods in self._recommended if at > now_s - self._hpa.up.window_s)])
        down = max([proposed, *(pods for at, pods in self._recommended if at > now_s - self._hpa.down.window_s)])
        self._recommended.append((now_s, proposed))
        return min(max(replicas, up), down)

    def _limited(self, now_s: float, replicas: int, wanted: int) -> int:
        """The wanted number, within the policies and the autoscaler's bounds."""
        hpa = self._hpa
        if wanted > replicas:
            limit = max(replicas, self._limit(now_s, replicas, hpa.up, 1))
            return min(wanted, limit, hpa.high)
        if wanted < replicas:
            limit = min(replicas, self._limit(now_s, replicas, hpa.down, -1))
            return max(wanted, limit, hpa.low)
        return wanted

    def _limit(self, now_s: float, replicas: int, rules: ScalingRules, sign: int) -> int:
        """The most pods (sign 1, scaling up) or the fewest (sign -1, scaling down) that the policies allow."""
        if rules.select == "Disabled":
            return replicas
        limits = []
        for policy in rules.policies:
            before = self._before(now_s, replicas, policy)
            pods = before + sign * policy.value if policy.kind == "Pods" else before * (1 + sign * policy.value / 100)
            limits.append(math.ceil(pods) if sign > 0 else int(pods))
        # `Max` selects the policy that allows the largest change.
        return max(limits) if (rules.select == "Max") == (sign > 0) else min(limits)

    def _before(self, now_s: float, replicas: int, policy: Policy) -> int:
        """The number of pods at the beginning of a policy's period."""
        since = now_s - policy.period_s
        added, removed = (sum(n for at, n in events if at > since) for events in (self._added, self._removed))
        return replicas - added + removed
