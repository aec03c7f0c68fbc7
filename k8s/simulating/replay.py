"""Replays traffic second by second: pods that start and stop, the controller that scales them, and the metrics that it
gets, with their delays: Prometheus' rate over its scrapes, and the metrics server's cpu usage."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median

from marina.k8s.simulating.controller import SYNC_S, Controller, PodMetric, PodMetrics, PodState
from marina.k8s.simulating.hpa import Hpa, Metric
from marina.k8s.simulating.traffic import TrafficTrace

# The first rate is sent for this long before the traffic begins, so that all windows are full by then.
_BEFORE_S = 900
# How often the metrics server reads the kubelets, in seconds.
_CPU_EVERY_S = 15
# `rate` extrapolates over a gap of up to this many intervals between scrapes.
_FURTHEST = 1.1


@dataclass(frozen=True)
class PodProfile:
    """What a pod can do, and how it is measured."""

    knee_rps: float
    target_rps: float
    cold_start_s: float
    queue: int
    """How many requests may wait in a pod."""
    scrape_s: int
    window_s: int
    """The window that rates are computed over."""
    forecast_lead_s: int
    """How far ahead the forecast looks in the past weeks."""
    propagation_s: float
    """How long a pod still serves after it was told to stop."""

    def __str__(self) -> str:
        rates = f"at most {self.knee_rps:g} requests/s, target {self.target_rps:.3g}"
        return f"one pod: {rates}, ready after {self.cold_start_s:g} s"


@dataclass
class _Pod:
    number: int
    created_s: int
    ready_s: int
    removed_s: int | None = None

    @cached_property
    def name(self) -> str:
        return f"pod-{self.number}"

    @cached_property
    def _ready_state(self) -> PodState:
        return PodState(self.name, started_s=self.created_s, ready_changed_s=self.ready_s)

    def state(self, now_s: int) -> PodState:
        if now_s >= self.ready_s:
            return self._ready_state
        return PodState(self.name, started_s=self.created_s, ready=False, ready_changed_s=self.created_s)


@dataclass(frozen=True)
class Moment:
    """One sync of the autoscaler, and the time since the one before."""

    at_s: int
    rate: float
    wanted: int
    ready: int
    missed: float
    """Requests since the last sync that missed the objective, shed ones included."""


@dataclass
class Replay:
    """The sums of a replay, and what happened at each sync."""

    moments: list[Moment] = field(default_factory=list)
    requests: float = 0
    late: float = 0
    shed: float = 0
    pod_seconds: float = 0
    overloaded_s: int = 0
    """Seconds in which the ready pods got more requests than their knee."""
    decisions: list[tuple[int, int, int]] = field(default_factory=list)
    """Each change of the number of pods: second, pods before, pods after."""


def replay(traffic: TrafficTrace, hpa: Hpa, pod: PodProfile) -> Replay:
    """Replays traffic through an autoscaler."""
    simulator = _Simulator(traffic, hpa, pod)
    for now_s in range(_BEFORE_S + len(traffic.rates)):
        simulator.tick(now_s)
    return simulator.finished()


class _Simulator:
    def __init__(self, traffic: TrafficTrace, hpa: Hpa, pod: PodProfile) -> None:
        self._traffic, self._hpa, self._pod = traffic, hpa, pod
        self._controller = Controller(hpa)
        wanted = min(hpa.high, max(hpa.low, math.ceil(traffic.rates[0] / pod.target_rps - 1e-9)))
        self._pods = [_Pod(number, 0, 0) for number in range(wanted)]
        self._gone: list[_Pod] = []
        self._starting: list[_Pod] = []
        self._made = wanted
        # Totals up to each second, for a pod that was always ready: the requests sent to it, and its work, in seconds
        # at the knee.
        self._sent, self._work = [0.0], [0.0]
        # What pods of the same age have in common at the last sync.
        self._usage: dict[tuple[int, int], PodMetric | None] = {}
        self._scraped: dict[tuple[int, int], list[int]] = {}
        self._backlog = 0.0
        self._missed = 0.0
        self._replay = Replay()

    def tick(self, now_s: int) -> None:
        """Simulates one second."""
        rate_now = self._traffic.rates[max(0, now_s - _BEFORE_S)]
        self._starting = [pod for pod in self._starting if pod.ready_s > now_s and pod.removed_s is None]
        ready = len(self._pods) - len(self._starting)
        self._serve(rate_now, ready, counted=now_s >= _BEFORE_S)
        if now_s % SYNC_S == 0:
            before = len(self._pods)
            self._reconcile(now_s)
            if now_s >= _BEFORE_S:
                at = now_s - _BEFORE_S
                if len(self._pods) != before:
                    self._replay.decisions.append((at, before, len(self._pods)))
                self._replay.moments.append(Moment(at, rate_now, len(self._pods), ready, self._missed))
                self._missed = 0.0

    def _serve(self, rate_now: float, ready: int, *, counted: bool) -> None:
        capacity = ready * self._pod.knee_rps
        due = self._backlog + rate_now
        done = min(due, capacity)
        self._backlog = min(due - done, ready * self._pod.queue)
        shed = due - done - self._backlog
        # As soon as some requests wait, all new ones wait behind them.
        late = rate_now - min(shed, rate_now) if self._backlog > 0 or due > capacity else 0.0
        self._sent.append(self._sent[-1] + (rate_now / ready if ready else 0.0))
        self._work.append(self._work[-1] + (done / capacity if ready else 0.0))
        if counted:
            replay = self._replay
            replay.requests += rate_now
            replay.shed += shed
            replay.late += late
            replay.overloaded_s += rate_now > capacity
            self._missed += shed + late

    def _reconcile(self, now_s: int) -> None:
        pods = [pod.state(now_s) for pod in self._pods]
        self._usage, self._scraped = {}, {}
        readings = {metric.name: self._readings(metric, now_s) for metric in self._hpa.metrics}
        totals = {
            metric.name: self._expected(metric, now_s) if metric.is_forecast else self._total(metric, now_s)
            for metric in self._hpa.metrics
            if metric.kind == "External"
        }
        wanted = self._controller.decide(now_s, len(pods), pods, readings, totals)
        self._controller.scale(now_s, len(pods), wanted)
        while len(self._pods) < wanted:
            self._start(now_s)
        while len(self._pods) > wanted:
            self._stop(now_s)

    def _readings(self, metric: Metric, now_s: int) -> PodMetrics:
        readings = {pod.name: self._reading(metric, pod, now_s) for pod in self._pods}
        return {name: reading for name, reading in readings.items() if reading is not None}

    def _reading(self, metric: Metric, pod: _Pod, now_s: int) -> PodMetric | None:
        if metric.kind == "Resource":
            return self._cpu(pod, now_s)
        value = self._rate(pod, now_s)
        return None if value is None else PodMetric(value)

    def _cpu(self, pod: _Pod, now_s: int) -> PodMetric | None:
        old_s = now_s - 2 * _CPU_EVERY_S
        age = max(old_s, pod.created_s), max(old_s, pod.ready_s)
        if age not in self._usage:
            self._usage[age] = cpu_metric(now_s, *age, self._work)
        return self._usage[age]

    def _rate(self, pod: _Pod, now_s: int) -> float | None:
        every_s, window_s = self._pod.scrape_s, self._pod.window_s
        age = max(now_s - window_s, pod.created_s), pod.number % every_s
        if age not in self._scraped:
            self._scraped[age] = scrape_times(now_s, age[0], every_s, window_s, pod.number)
        times, since = self._scraped[age], self._sent[min(pod.ready_s, now_s)]
        values = [max(0.0, self._sent[at] - since) for at in (*times[:1], *times[-1:])]
        return rate(times, values, now_s, window_s)

    def _total(self, metric: Metric, now_s: int) -> float | None:
        readings = self._readings(metric, now_s).values()
        return sum(reading.value for reading in readings) if readings else None

    def _expected(self, metric: Metric, now_s: int) -> float | None:
        """The forecast: the larger of the rate now and the median of the past weeks, as the recording rule has it."""
        past = self._traffic.rates_in_past_weeks(now_s - _BEFORE_S + self._pod.forecast_lead_s)
        known = [self._total(metric, now_s), median(past) if past else None]
        return max((value for value in known if value is not None), default=None)

    def _start(self, now_s: int) -> None:
        self._pods.append(_Pod(self._made, now_s, math.ceil(now_s + self._pod.cold_start_s)))
        self._starting.append(self._pods[-1])
        self._made += 1

    def _stop(self, now_s: int) -> None:
        """Stops the pod that a ReplicaSet would choose: one that is not ready if there is any, else the youngest."""
        chosen = max(self._pods, key=lambda pod: (pod.ready_s > now_s, pod.created_s, pod.number))
        self._pods.remove(chosen)
        chosen.removed_s = now_s
        self._gone.append(chosen)

    def finished(self) -> Replay:
        """The replay, once the time of its pods is added up."""
        end = _BEFORE_S + len(self._traffic.rates)
        for pod in [*self._pods, *self._gone]:
            until = end if pod.removed_s is None else min(end, pod.removed_s + self._pod.propagation_s)
            self._replay.pod_seconds += max(0.0, until - max(_BEFORE_S, pod.created_s))
        return self._replay


def scrape_times(now_s: int, since_s: int, interval_s: int, window_s: int, pod: int) -> list[int]:
    """The seconds of a window at which Prometheus scraped a pod. Each pod has its own phase within the interval."""
    # Seven is coprime to the usual intervals, so the pods are spread over them.
    phase = pod * 7 % interval_s
    last = now_s - (now_s - phase) % interval_s
    return [at for at in range(last, now_s - window_s, -interval_s) if at >= since_s][::-1]


def rate(times: Sequence[int], values: Sequence[float], now_s: int, window_s: int) -> float | None:
    """PromQL's `rate(counter[window])` at `now_s`, extrapolated to the ends of the window, but not below zero.

    Of the values, only the first and the last count."""
    if len(times) < 2:
        return None
    increase, covered = values[-1] - values[0], times[-1] - times[0]
    between = covered / (len(times) - 1)
    to_start, to_end = float(times[0] - (now_s - window_s)), float(now_s - times[-1])
    if to_start >= between * _FURTHEST:
        to_start = between / 2
    if increase > 0:
        to_start = min(to_start, covered * values[0] / increase)
    if to_end >= between * _FURTHEST:
        to_end = between / 2
    return increase * (covered + to_start + to_end) / covered / window_s


def cpu_metric(now_s: int, started_s: int, ready_s: int, work: Sequence[float]) -> PodMetric | None:
    """The share of its cpu request that a pod used between the last two readings of the metrics server. `work` is the
    total work of a ready pod up to each second; a starting pod is assumed to use its whole request."""
    at = now_s - now_s % _CPU_EVERY_S
    since = at - _CPU_EVERY_S
    if since < started_s:
        return None
    serving = work[at] - work[max(since, min(ready_s, at))]
    starting = max(0, min(at, ready_s) - since)
    return PodMetric((serving + starting) / _CPU_EVERY_S, at_s=at, window_s=_CPU_EVERY_S)
