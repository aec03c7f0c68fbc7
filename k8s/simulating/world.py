"""A cluster on a clock: traffic, pods that start and end, what is measured of them, and the controller that looks."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import median

from k8s.simulating.controller import SYNC_S, Controller
from k8s.simulating.hpa import Hpa, Metric
from k8s.simulating.readings import cpu_reading, rate, scraped_at
from k8s.simulating.traffic import Trace
from k8s.simulating.wishes import PodState, Reading, Readings

# What happened before the trace: its first rate, so that windows are full when it begins.
_BEFORE_S = 900
# A node without pods is kept this long: the cluster autoscaler's default.
_NODE_KEPT_S = 600


@dataclass(frozen=True)
class Service:
    """What a pod does and needs."""

    knee_rps: float
    target_rps: float
    cold_start_s: float
    node_s: float
    """Until there is a node for a pod that has none."""
    queue: int
    """Requests that may wait in a pod."""
    metric: str
    """`scaling.metric`."""
    scrape_s: int
    window_s: int
    """What rates are taken over."""
    forecast_lead_s: int
    """How much earlier the weeks before are read."""
    propagation_s: float
    """How long a pod that is told to stop serves on."""


@dataclass
class _Pod:
    number: int
    created_s: int
    running_s: int
    ready_s: int
    removed_s: int | None = None

    @property
    def name(self) -> str:
        return f"pod-{self.number}"

    def state(self, now_s: int) -> PodState:
        pending = now_s < self.running_s
        ready = now_s >= self.ready_s
        changed = self.ready_s if ready else self.running_s
        return PodState(self.name, pending, False, None if pending else self.running_s, ready, changed)


@dataclass(frozen=True)
class Moment:
    """What was between two looks of the autoscaler."""

    at_s: int
    rate: float
    wanted: int
    ready: int
    beyond: float
    """Requests of these seconds that are beyond the objective, shed ones too."""


@dataclass
class Run:
    """What came of a trace."""

    moments: list[Moment] = field(default_factory=list)
    requests: float = 0
    late: float = 0
    shed: float = 0
    pod_seconds: float = 0
    short_s: int = 0
    """Seconds in which the ready pods were asked for more than their knee."""
    decisions: list[tuple[int, int, int]] = field(default_factory=list)
    """Second, pods before, pods after."""


def replay(trace: Trace, hpa: Hpa, service: Service) -> Run:
    """A trace through an autoscaler."""
    world = _World(trace, hpa, service)
    for now_s in range(_BEFORE_S + len(trace.rates)):
        world.tick(now_s)
    return world.finished()


class _World:
    def __init__(self, trace: Trace, hpa: Hpa, service: Service) -> None:
        self._trace, self._hpa, self._service = trace, hpa, service
        self._controller = Controller(hpa)
        wanted = min(hpa.high, max(hpa.low, math.ceil(trace.rates[0] / service.target_rps - 1e-9)))
        self._pods = [_Pod(number, 0, 0, 0) for number in range(wanted)]
        self._gone: list[_Pod] = []
        self._made = wanted
        self._free_nodes: list[int] = []
        # By each second: what a pod that was ready all the time was sent, and has done, of its knee.
        self._sent, self._work = [0.0], [0.0]
        self._backlog = 0.0
        self._beyond = 0.0
        self._run = Run()

    def tick(self, now_s: int) -> None:
        """One second."""
        rate_now = self._trace.rates[max(0, now_s - _BEFORE_S)]
        ready = sum(1 for pod in self._pods if pod.ready_s <= now_s)
        self._serve(rate_now, ready, counted=now_s >= _BEFORE_S)
        if now_s % SYNC_S == 0:
            before = len(self._pods)
            self._look(now_s)
            if now_s >= _BEFORE_S:
                at = now_s - _BEFORE_S
                if len(self._pods) != before:
                    self._run.decisions.append((at, before, len(self._pods)))
                self._run.moments.append(Moment(at, rate_now, len(self._pods), ready, self._beyond))
                self._beyond = 0.0

    def _serve(self, rate_now: float, ready: int, *, counted: bool) -> None:
        service, capacity = self._service, ready * self._service.knee_rps
        asked = self._backlog + rate_now
        done = min(asked, capacity)
        self._backlog = min(asked - done, ready * service.queue)
        shed = asked - done - self._backlog
        # Once something waits, all that comes waits behind it.
        late = rate_now - min(shed, rate_now) if self._backlog > 0 or asked > capacity else 0.0
        self._sent.append(self._sent[-1] + (rate_now / ready if ready else 0.0))
        self._work.append(self._work[-1] + (done / capacity if ready else 0.0))
        if counted:
            run = self._run
            run.requests += rate_now
            run.shed += shed
            run.late += late
            run.short_s += rate_now > capacity
            self._beyond += shed + late

    def _look(self, now_s: int) -> None:
        pods = [pod.state(now_s) for pod in self._pods]
        readings = {metric.name: self._readings(metric, now_s) for metric in self._hpa.metrics}
        totals = {
            metric.name: self._expected(now_s) if metric.forecasts else self._total(now_s)
            for metric in self._hpa.metrics
            if metric.kind == "External"
        }
        wanted = self._controller.look(now_s, len(pods), pods, readings, totals).replicas
        while len(self._pods) < wanted:
            self._start(now_s)
        while len(self._pods) > wanted:
            self._stop(now_s)

    def _readings(self, metric: Metric, now_s: int) -> Readings:
        readings = {pod.name: self._reading(metric, pod, now_s) for pod in self._pods if pod.running_s <= now_s}
        return {name: reading for name, reading in readings.items() if reading is not None}

    def _reading(self, metric: Metric, pod: _Pod, now_s: int) -> Reading | None:
        if metric.kind == "Resource":
            return cpu_reading(now_s, pod.running_s, pod.ready_s, self._work)
        if self._service.metric == "gpu":
            used = cpu_reading(now_s, pod.running_s, pod.ready_s, self._work)
            return Reading(100 * used.value) if used and now_s >= pod.ready_s else used and Reading(0.0)
        value = self._rate(pod, now_s)
        return None if value is None else Reading(value)

    def _rate(self, pod: _Pod, now_s: int) -> float | None:
        service = self._service
        times = scraped_at(now_s, pod.running_s, service.scrape_s, service.window_s, pod.number)
        since = self._sent[pod.ready_s] if pod.ready_s <= now_s else 0.0
        values = [max(0.0, self._sent[at] - since) if at >= pod.ready_s else 0.0 for at in times]
        return rate(times, values, now_s, service.window_s)

    def _total(self, now_s: int) -> float | None:
        rates = [measured for pod in self._pods if (measured := self._rate(pod, now_s)) is not None]
        return sum(rates) if rates else None

    def _expected(self, now_s: int) -> float | None:
        """The larger of now and the median of the weeks before, as it is recorded."""
        past = self._trace.weeks_before(now_s - _BEFORE_S + self._service.forecast_lead_s)
        known = [self._total(now_s), median(past) if past else None]
        return max((value for value in known if value is not None), default=None)

    def _start(self, now_s: int) -> None:
        self._free_nodes = [at for at in self._free_nodes if at + _NODE_KEPT_S > now_s]
        wait_s = 0.0
        if self._free_nodes:
            self._free_nodes.pop()
        else:
            wait_s = self._service.node_s
        running = math.ceil(now_s + wait_s)
        ready = math.ceil(running + self._service.cold_start_s)
        self._pods.append(_Pod(self._made, now_s, running, ready))
        self._made += 1

    def _stop(self, now_s: int) -> None:
        """As a ReplicaSet chooses: one that is not ready before one that is, the youngest first."""
        chosen = max(self._pods, key=lambda pod: (pod.ready_s > now_s, pod.created_s, pod.number))
        self._pods.remove(chosen)
        chosen.removed_s = now_s
        self._gone.append(chosen)
        self._free_nodes.append(now_s)

    def finished(self) -> Run:
        """The run, with what its pods cost in time."""
        end = _BEFORE_S + len(self._trace.rates)
        for pod in [*self._pods, *self._gone]:
            until = end if pod.removed_s is None else min(end, pod.removed_s + self._service.propagation_s)
            self._run.pod_seconds += max(0.0, until - max(_BEFORE_S, pod.running_s))
        return self._run
