"""One look of the HorizontalPodAutoscaler's controller, as in Kubernetes' `horizontal.go`: from wishes to a number of
pods, through the windows of stabilization and the policies."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from k8s.simulating.hpa import Hpa, Metric, Policy, Rules
from k8s.simulating.wishes import PodState, Readings, external_wish, wish

# How often the controller looks, s.
SYNC_S = 15
# How far one look goes up where an object has no `behavior`.
_TIMES, _AT_LEAST = 2, 4


@dataclass(frozen=True)
class Decision:
    """What one look came to."""

    replicas: int
    wished: int | None
    """What the metrics asked for; None where one of them had no value and none asked for more, so that nothing is
    done."""


class Controller:
    """Remembers what it recommended and how it scaled, as the controller does."""

    def __init__(self, hpa: Hpa) -> None:
        self._hpa = hpa
        self._recommended: list[tuple[float, int]] = []
        self._added: list[tuple[float, int]] = []
        self._removed: list[tuple[float, int]] = []

    def look(
        self,
        now_s: float,
        replicas: int,
        pods: Iterable[PodState],
        readings: Mapping[str, Readings],
        totals: Mapping[str, float | None],
    ) -> Decision:
        """Decides by the readings of each metric of pods and by the sums that the external ones are, and scales."""
        decision = self.decide(now_s, replicas, pods, readings, totals)
        self.scale(now_s, replicas, decision.replicas)
        return decision

    def decide(
        self,
        now_s: float,
        replicas: int,
        pods: Iterable[PodState],
        readings: Mapping[str, Readings],
        totals: Mapping[str, float | None],
    ) -> Decision:
        """What a look comes to; that pods were scaled by it is to be said."""
        hpa, known = self._hpa, list(pods)
        if not self._recommended:
            self._recommended.append((now_s, replicas))
        # Whoever sets no pods switches the autoscaler off.
        if not replicas and hpa.low:
            return Decision(0, None)
        if not hpa.low <= replicas <= hpa.high:
            return Decision(min(max(replicas, hpa.low), hpa.high), None)
        wishes = [self._wish(metric, now_s, replicas, known, readings, totals) for metric in hpa.metrics]
        known_wishes = [pods for pods in wishes if pods is not None]
        wished = max(known_wishes, default=None)
        # One metric without a value leaves the way up open, and the way down closed.
        if wished is None or (len(known_wishes) < len(wishes) and wished < replicas):
            return Decision(replicas, None)
        return Decision(self._limited(now_s, replicas, self._stabilized(now_s, replicas, wished)), wished)

    def scale(self, now_s: float, before: int, after: int) -> None:
        """Remembers that the pods were scaled, for policies to count."""
        if after == before or not self._hpa.paced:
            return
        events, rules = (self._added, self._hpa.up) if after > before else (self._removed, self._hpa.down)
        longest = max((policy.period_s for policy in rules.policies), default=0)
        # One that is too old for the policies of its own direction gives its place to the new one, even though those
        # of the other direction may still count it.
        old = [place for place, (at, _) in enumerate(events) if at < now_s - longest]
        event = (now_s, abs(after - before))
        if old:
            events[old[-1]] = event
        else:
            events.append(event)

    def _wish(
        self,
        metric: Metric,
        now_s: float,
        replicas: int,
        pods: list[PodState],
        readings: Mapping[str, Readings],
        totals: Mapping[str, float | None],
    ) -> int | None:
        if metric.kind == "External":
            return external_wish(metric, self._hpa, replicas, totals.get(metric.name))
        return wish(metric, self._hpa, replicas, pods, readings.get(metric.name, {}), now_s)

    def _stabilized(self, now_s: float, replicas: int, wished: int) -> int:
        """Up by the lowest wish of its window, down by the highest of its own."""
        longest = max(self._hpa.up.window_s, self._hpa.down.window_s)
        self._recommended = [(at, pods) for at, pods in self._recommended if at >= now_s - longest]
        up = min([wished, *(pods for at, pods in self._recommended if at > now_s - self._hpa.up.window_s)])
        down = max([wished, *(pods for at, pods in self._recommended if at > now_s - self._hpa.down.window_s)])
        self._recommended.append((now_s, wished))
        return min(max(replicas, up), down)

    def _limited(self, now_s: float, replicas: int, wanted: int) -> int:
        """No further than the policies allow, and between the least and the most."""
        hpa = self._hpa
        if wanted > replicas:
            limit = max(replicas, self._limit(now_s, replicas, hpa.up, 1))
            return min(wanted, limit, hpa.high)
        if wanted < replicas:
            limit = min(replicas, self._limit(now_s, replicas, hpa.down, -1))
            return max(wanted, limit, hpa.low)
        return wanted

    def _limit(self, now_s: float, replicas: int, rules: Rules, sign: int) -> int:
        """How many pods there may be after this look, which moves up for a sign of 1 and down for -1."""
        if not self._hpa.paced:
            return max(_TIMES * replicas, _AT_LEAST) if sign > 0 else 0
        if rules.select == "Disabled":
            return replicas
        limits = []
        for policy in rules.policies:
            before = self._before(now_s, replicas, policy)
            pods = before + sign * policy.value if policy.kind == "Pods" else before * (1 + sign * policy.value / 100)
            limits.append(math.ceil(pods) if sign > 0 else int(pods))
        # `Max` is the policy that moves most.
        return max(limits) if (rules.select == "Max") == (sign > 0) else min(limits)

    def _before(self, now_s: float, replicas: int, policy: Policy) -> int:
        """The pods at the beginning of a policy's period."""
        since = now_s - policy.period_s
        added, removed = (sum(n for at, n in events if at > since) for events in (self._added, self._removed))
        return replicas - added + removed
