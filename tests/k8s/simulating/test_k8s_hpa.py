"""The autoscaler's algorithm, checked against Kubernetes' documentation and source."""

import itertools
from typing import Any

import pytest

from marina.k8s.simulating.controller import Controller, PodMetric, PodState
from marina.k8s.simulating.hpa import Hpa, read_hpa
from marina.k8s.simulating.replay import rate, scrape_times

RATE, CPU = "requests_per_second", "cpu"
LONG_AGO = -10_000.0
READY = {"started_s": LONG_AGO, "ready_changed_s": LONG_AGO}


def hpa(low: int = 1, high: int = 100, cpu: int | None = None, **behavior: Any) -> Hpa:
    target = {"type": "AverageValue", "averageValue": "100"}
    metrics: list[dict[str, Any]] = [{"type": "Pods", "pods": {"metric": {"name": RATE}, "target": target}}]
    if cpu:
        resource = {"name": CPU, "container": "server", "target": {"type": "Utilization", "averageUtilization": cpu}}
        metrics.append({"type": "ContainerResource", "containerResource": resource})
    spec = {"minReplicas": low, "maxReplicas": high, "metrics": metrics, "behavior": behavior}
    return read_hpa({"kind": "HorizontalPodAutoscaler", "spec": spec})


def pods(count: int, **changes: Any) -> list[PodState]:
    return [PodState(f"pod-{number}", **(READY | changes)) for number in range(count)]


def readings(values: list[float | None], **times: float) -> dict[str, PodMetric]:
    return {f"pod-{number}": PodMetric(value, **times) for number, value in enumerate(values) if value is not None}


def replicas_after(autoscaler: Hpa, values: list[float | None], **pod: Any) -> int:
    known = pods(len(values), **pod)
    return Controller(autoscaler).decide(0, len(values), known, {RATE: readings(values)}, {})


def test_a_target_is_rounded_up_to_thousandths_as_kubernetes_does() -> None:
    target = {"type": "AverageValue", "averageValue": "1400u"}
    metrics = [{"type": "Pods", "pods": {"metric": {"name": RATE}, "target": target}}]
    autoscaler = read_hpa(
        {"kind": "HorizontalPodAutoscaler", "spec": {"maxReplicas": 9, "metrics": metrics, "behavior": {}}}
    )
    assert replicas_after(autoscaler, [0.002]) == 1


def test_the_largest_proposal_counts_and_an_unknown_metric_only_keeps_pods() -> None:
    autoscaler = hpa(cpu=50, scaleDown={"stabilizationWindowSeconds": 0})
    busy = {RATE: readings([100, 100]), CPU: readings([1.0, 1.0])}
    assert Controller(autoscaler).decide(0, 2, pods(2), busy, {}) == 4
    idle = {RATE: readings([10, 10])}
    assert Controller(autoscaler).decide(0, 2, pods(2), idle, {}) == 2
    assert Controller(autoscaler).decide(0, 2, pods(2), {RATE: readings([300, 300])}, {}) == 6


@pytest.mark.parametrize(
    ("pod", "reading", "counts"),
    [
        # In the first five minutes, a value only counts if its whole window is after the pod became ready.
        ({"started_s": -60, "ready_changed_s": -30}, {"at_s": -10, "window_s": 15}, True),
        ({"started_s": -60, "ready_changed_s": -20}, {"at_s": -10, "window_s": 15}, False),
        ({"started_s": -60, "ready": False}, {"at_s": -1, "window_s": 15}, False),
        # After that, it only does not count if the pod has never been ready.
        ({"started_s": -400, "ready": False, "ready_changed_s": -400}, {}, False),
        ({"started_s": -400, "ready": False, "ready_changed_s": -100}, {}, True),
    ],
)
def test_the_cpu_of_a_start_is_not_the_cpu_of_serving(pod: Any, reading: Any, counts: bool) -> None:
    autoscaler = hpa(cpu=50)
    usage = {RATE: readings([100]), CPU: readings([2.0], **reading)}
    assert Controller(autoscaler).decide(0, 1, pods(1, **pod), usage, {}) == (4 if counts else 1)


def decisions(autoscaler: Hpa, replicas: int, proposals: list[int], every_s: float = 15) -> list[int]:
    """The pods after each sync, if the metrics propose these numbers one after the other."""
    controller, decided = Controller(autoscaler), [replicas]
    for number, proposed in enumerate(proposals):
        now = decided[-1]
        usage = {RATE: readings([100 * proposed / now] * now)}
        decided.append(controller.decide(number * every_s, now, pods(now), usage, {}))
        controller.scale(number * every_s, now, decided[-1])
    return decided


def test_a_window_takes_the_lowest_proposal_for_more_and_the_highest_for_fewer() -> None:
    up = {"stabilizationWindowSeconds": 60}
    assert decisions(hpa(scaleUp=up), 4, [4, 8, 8, 8, 8, 8]) == [4, 4, 4, 4, 4, 8, 8]
    assert decisions(hpa(scaleUp=up), 4, [4, 8, 6, 8, 8, 8]) == [4, 4, 4, 4, 4, 6, 6]
    down = {"stabilizationWindowSeconds": 60}
    assert decisions(hpa(scaleDown=down), 8, [8, 2, 2, 2, 2]) == [8, 8, 8, 8, 8, 2]
    assert decisions(hpa(scaleDown=down), 8, [8, 2, 6, 2, 2, 2, 2]) == [8, 8, 8, 8, 8, 6, 6, 2]


def policies(*some: tuple[str, int, int], **more: Any) -> dict[str, Any]:
    listed = [{"type": kind, "value": value, "periodSeconds": period} for kind, value, period in some]
    return {"stabilizationWindowSeconds": 0, "policies": listed} | more


def test_policies_scale_as_in_the_documentation_of_kubernetes() -> None:
    # 10 % or 4 pods a minute, from 80 to 10: first 8, 8 and 7, then 4 once a tenth is less.
    down = policies(("Pods", 4, 60), ("Percent", 10, 60))
    seen = decisions(hpa(scaleDown=down), 80, [10] * 20, every_s=60)
    assert seen[:4] == [80, 72, 64, 57]
    assert [before - after for before, after in itertools.pairwise(seen) if before <= 40][:5] == [4] * 5
    assert seen[-1] == 10


def test_the_default_way_up_doubles_or_adds_four_every_fifteen_seconds() -> None:
    assert decisions(hpa(), 1, [80] * 5) == [1, 5, 10, 20, 40, 80]


def test_a_scaled_object_is_read_as_the_autoscaler_that_keda_makes() -> None:
    trigger = {"type": "prometheus", "metricType": "AverageValue", "metadata": {"query": "q", "threshold": "70"}}
    cpu = {"type": "cpu", "metricType": "Utilization", "metadata": {"value": "80"}}
    behavior = {"scaleUp": {"stabilizationWindowSeconds": 9}, "scaleDown": {"stabilizationWindowSeconds": 77}}
    spec = {"minReplicaCount": 2, "maxReplicaCount": 9, "triggers": [trigger, cpu]}
    spec["advanced"] = {"horizontalPodAutoscalerConfig": {"behavior": behavior}}
    autoscaler = read_hpa({"kind": "ScaledObject", "spec": spec})
    assert (autoscaler.low, autoscaler.high, autoscaler.up.window_s, autoscaler.down.window_s) == (2, 9, 9, 77)
    assert [(metric.kind, metric.name, metric.target) for metric in autoscaler.metrics] == [
        ("External", "q", 70.0),
        ("Resource", "cpu", 80.0),
    ]
    cpus = {CPU: readings([0.1, 0.1])}
    controller = Controller(autoscaler)
    assert [controller.decide(now_s, 2, pods(2), cpus, {"q": 300.0}) for now_s in (0, 10)] == [2, 5]


def test_a_rate_is_extrapolated_as_prometheus_does() -> None:
    # A counter that rises by 10 a second, scraped every 15 s, at 5 s past the last scrape.
    times = scrape_times(125, 0, 15, 60, pod=0)
    assert times == [75, 90, 105, 120]
    assert rate(times, [10.0 * at for at in times], 125, 60) == pytest.approx(10)
    # A counter that was 0 at the first scrape is not taken below 0: 450 in 45 s, 5 s more to the end, none before.
    assert rate(times, [10.0 * (at - 75) for at in times], 125, 60) == pytest.approx(450 * 50 / 45 / 60)
    # One scrape gives no rate. If a pod started within the window, half an interval is added before its first scrape.
    assert rate([120], [5.0], 125, 60) is None
    assert rate([105, 120], [100.0, 250.0], 125, 60) == pytest.approx(150 * (15 + 7.5 + 5) / 15 / 60)
