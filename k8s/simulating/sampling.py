"""The metrics that the autoscaler gets, with their delays: Prometheus' rate over its scrapes, and the metrics server's
cpu usage."""

from collections.abc import Sequence

from marina.k8s.simulating.replica_calculator import PodMetric

# How often the metrics server reads the kubelets, in seconds.
CPU_EVERY_S = 15
_FURTHEST = 1.1


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


def cpu_metric(now_s: int, running_s: int, ready_s: int, work: Sequence[float]) -> PodMetric | None:
    """The share of its cpu request that a pod used between the last two readings of the metrics server. `work` is the
    total work of a ready pod up to each second; a starting pod is assumed to use its whole request."""
    at = now_s - now_s % CPU_EVERY_S
    since = at - CPU_EVERY_S
    if since < running_s:
        return None
    serving = work[at] - work[max(since, min(ready_s, at))]
    starting = max(0, min(at, ready_s) - since)
    return PodMetric((serving + starting) / CPU_EVERY_S, at_s=at, window_s=CPU_EVERY_S)
