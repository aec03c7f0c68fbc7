"""Simulated servers: queues with a known p99, and what a load test of one would measure."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marina.config.measured import Objective
from marina.config.progress import Progress
from marina.loadtest.measuring import Histogram, Measurement, Second, Slice
from marina.loadtest.scheduling import Schedule

Seconds = NDArray[np.float64]
Dice = np.random.Generator
Change = Callable[[Measurement], Measurement]
EDGES = [0.01 * 1.01**step for step in range(1800)]


@dataclass(frozen=True)
class Queue:
    """`serve` returns how long requests at these times take; `most` is the highest rate, which it just does not
    hold."""

    name: str
    most: float
    serve: Callable[[Seconds, Dice], Seconds]


def single(arrivals: Seconds, service: Seconds) -> Seconds:
    """One server, first come, first served."""
    done = np.cumsum(service)
    begun = np.maximum.accumulate(arrivals - (done - service))
    return np.asarray(begun + done - arrivals)


def batches(arrivals: Seconds, costs: list[float], workers: int) -> Seconds:
    """Workers that each take all waiting requests, up to as many as there are costs."""
    times, free, taken = arrivals.tolist(), [0.0] * workers, list[float]()
    while len(taken) < len(times):
        at = len(taken)
        worker = min(range(workers), key=free.__getitem__)
        begun = max(times[at], free[worker])
        size = 1
        while size < len(costs) and at + size < len(times) and times[at + size] <= begun:
            size += 1
        free[worker] = begun + costs[size - 1]
        taken += [free[worker] - time for time in times[at : at + size]]
    return np.array(taken)


def always(service_s: float) -> Queue:
    """M/D/1 under random arrivals."""
    return Queue("M/D/1", 1 / service_s, lambda times, _: single(times, np.full(len(times), service_s)))


def pausing(service_s: float, every_s: float, pause_s: float) -> Queue:
    """M/D/1 that now and then does something else for a while, as a garbage collector does."""

    def serve(times: Seconds, dice: Dice) -> Seconds:
        service = np.full(len(times), service_s)
        begun = np.sort(dice.random(dice.poisson(times[-1] / every_s))) * times[-1]
        np.add.at(service, np.searchsorted(times, begun), pause_s)
        return single(times, service)

    return Queue(f"M/D/1, pauses of {pause_s:g} s", 1 / service_s, serve)


def varying(service_s: float) -> Queue:
    """M/G/1: half of the service time is constant, the other half exponential."""

    def serve(times: Seconds, dice: Dice) -> Seconds:
        return single(times, service_s / 2 * (1 + dice.exponential(1.0, len(times))))

    return Queue("M/G/1", 1 / service_s, serve)


def two_workers(costs: list[float]) -> Queue:
    """Two workers that answer in batches, like those of TorchServe."""
    return Queue("two workers, batches", 2 * len(costs) / costs[-1], lambda times, _: batches(times, costs, 2))


def wandering(median_s: float, over_s: float) -> Queue:
    """Nobody waits, but latency wanders as a whole, and a run much shorter than `over_s` sees only a part of that."""

    def serve(times: Seconds, dice: Dice) -> Seconds:
        kept = np.exp(-np.diff(times, prepend=-np.inf) / over_s)
        pushed = np.sqrt(1 - kept**2) * dice.standard_normal(len(times))
        wander = list(accumulate(zip(kept, pushed, strict=True), lambda at, step: at * step[0] + step[1], initial=0.0))
        return median_s * np.exp(0.2 * np.array(wander[1:]) + 0.2 * dice.standard_normal(len(times)))

    return Queue(f"wanders over {over_s:g} s", 4 / median_s, serve)


QUEUES = [always(0.010), varying(0.010), two_workers([0.018, 0.024, 0.030, 0.036])]


def true_p99_ms(queue: Queue, rate: float, *, requests: int = 2_000_000, seed: int = 1) -> float:
    """The p99 in a run far longer than any load test."""
    dice = np.random.default_rng([seed, 99])
    times = np.cumsum(dice.exponential(1 / rate, requests))
    return float(np.quantile(queue.serve(times, dice)[requests // 100 :], 0.99)) * 1000


def true_knee(queue: Queue, limit_ms: float, *, requests: int = 1_500_000) -> float:
    """The rate at which the p99 is the limit, by bisection."""
    low, high = 0.2 * queue.most, 0.99 * queue.most
    for _ in range(12):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if true_p99_ms(queue, middle, requests=requests) <= limit_ms else (low, middle)
    return math.sqrt(low * high)


class SimulatedSession:
    """A session with a simulated server, as far as trials need one."""

    def __init__(
        self,
        queue: Queue,
        objective: Objective,
        seed: int,
        change: Callable[[Measurement], Measurement] = lambda run: run,
    ) -> None:
        self._queue, self._objective, self._seed, self._change = queue, objective, seed, change
        self.progress = Progress(quiet=True)
        self.schedules: list[Schedule] = []

    def measure(self, schedule: Schedule, label: str) -> Measurement:
        self.schedules.append(schedule)
        assert label
        return self._change(measured(self._queue, schedule, self._objective.p99_ms, self._seed))


def measured(queue: Queue, schedule: Schedule, limit_ms: float, seed: int) -> Measurement:
    """What a load test of the queue measures, with a perfect generator and network."""
    times = np.array(schedule.times())
    took = queue.serve(times, np.random.default_rng([seed, schedule.seed]))
    inside = times >= schedule.warmup_s
    due, latency = times[inside] - schedule.warmup_s, took[inside] * 1000
    in_time = times[inside] + took[inside] <= schedule.total_s + limit_ms / 1000
    edges = np.array(sorted({*EDGES, limit_ms}))
    count = schedule.slices
    which = np.minimum((due / schedule.duration_s * count).astype(int), count - 1)
    cuts = np.searchsorted(which, np.arange(1, count))
    slices = [
        Slice(due=len(part), in_time=int(good.sum()), response=histogram(part, edges, limit_ms))
        for part, good in zip(np.split(latency, cuts), np.split(in_time, cuts), strict=True)
    ]
    whole = histogram(latency, edges, limit_ms)
    fields: dict[str, Any] = {
        "rate": schedule.rate, "asked_s": schedule.duration_s, "ran_s": schedule.duration_s,
        "planned": len(due), "sent": len(due), "dropped": 0, "warmup": len(times) - len(due),
        "in_time": int(in_time.sum()), "errors": {}, "response": whole, "service": whole,
        "lag": Histogram((limit_ms,)), "loop_lag": Histogram((limit_ms,)), "seconds": (Second(),), "generators": (),
    }  # fmt: skip
    return Measurement(**fields, slices=tuple(slices))


def histogram(values_ms: Seconds, edges: Seconds, limit_ms: float) -> Histogram:
    """The histogram of the values, without adding them one by one."""
    indices, counts = np.unique(np.searchsorted(edges, values_ms), return_counts=True)
    buckets = [[float(edges[index]), int(times)] for index, times in zip(indices, counts, strict=True)]
    return Histogram.from_data(
        {
            "limits": [limit_ms],
            "count": len(values_ms),
            "sum_ms": float(values_ms.sum()),
            "min_ms": float(values_ms.min()) if len(values_ms) else None,
            "max_ms": float(values_ms.max()) if len(values_ms) else None,
            "buckets": buckets,
        }
    )
