"""The HorizontalPodAutoscaler's controller, as in Kubernetes' `horizontal.go`: from the pods that each metric proposes
to a number of pods, through the stabilization windows and the policies."""

import math
from collections.abc import Iterable, Mapping

from marina.k8s.simulating.hpa import Hpa, Metric, Policy, ScalingRules
from marina.k8s.simulating.replica_calculator import PodMetrics, PodState, replicas_for_metric, replicas_for_total

# The controller's sync period, in seconds.
SYNC_S = 15
# How far one sync scales up an object without `behavior`: to twice the pods, or to four.
_TIMES, _AT_LEAST = 2, 4


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
        if after == before or not self._hpa.has_behavior:
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
        # Without a `behavior`, the highest recommendation of the window counts even above the pods there are.
        return min(max(replicas, up), down) if self._hpa.has_behavior else down

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
        if not self._hpa.has_behavior:
            return max(_TIMES * replicas, _AT_LEAST) if sign > 0 else 0
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
