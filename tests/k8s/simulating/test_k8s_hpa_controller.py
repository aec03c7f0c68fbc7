"""The autoscaler's decisions compared with those of Kubernetes' own controller: the cases of its tests, and those that
its source decides differently than its documentation says."""

from collections.abc import Sequence
from typing import Any

import pytest

from marina.k8s.simulating.controller import Controller, PodMetric, PodState, replicas_for_metric
from marina.k8s.simulating.hpa import Hpa, read_hpa

LONG_AGO = -10_000.0
# The states of a pod. Values are thousandths of its cpu request, or the metric itself.
READY, UNREADY, PENDING = "ready", "unready", "pending"


def autoscaler(target: float, kind: str = "cpu", *, low: int = 1, high: int = 1000, **behavior: Any) -> Hpa:
    if kind == "rate":
        metric: dict[str, Any] = {
            "type": "Pods",
            "pods": {
                "metric": {"name": "rate"},
                "target": {"type": "AverageValue", "averageValue": f"{round(1000 * target)}m"},
            },
        }
    else:
        wanted = {"type": "Utilization", "averageUtilization": int(target)}
        metric = {"type": "Resource", "resource": {"name": kind, "target": wanted}}
    spec = {"minReplicas": low, "maxReplicas": high, "metrics": [metric], "behavior": behavior}
    return read_hpa({"kind": "HorizontalPodAutoscaler", "spec": spec})


def state(number: int, how: str) -> PodState:
    # A pod counts as never ready if its readiness last changed when it started.
    changed = LONG_AGO if how == READY else LONG_AGO + 1
    return PodState(f"pod-{number}", how == PENDING, LONG_AGO, how != UNREADY, changed)


def proposed(hpa: Hpa, replicas: int, pods: list[str], values: list[float | None]) -> int | None:
    (metric,) = hpa.metrics
    scale = 1000 if metric.kind == "Resource" else 1
    readings = {f"pod-{place}": PodMetric(value / scale) for place, value in enumerate(values) if value is not None}
    return replicas_for_metric(metric, hpa, replicas, [state(*pod) for pod in enumerate(pods)], readings, 0.0)


R, U, P = [READY], [UNREADY], [PENDING]
# Metric, target, current replicas, the pods' states, their values, and how many pods the metric proposes.
PROPOSALS: list[Any] = [
    ("cpu", 30, 3, R * 3, [300, 500, 700], 5),
    ("cpu", 30, 3, U + R * 2, [300, 500, 700], 4),
    ("cpu", 30, 3, R + U * 2, [400, 500, 700], 3),
    ("cpu", 30, 3, P + R * 2, [None, 500, 700], 4),
    ("cpu", 30, 3, R + U + P, [400, 500, None], 3),
    ("cpu", 50, 5, R * 5, [100, 300, 500, 250, 250], 3),
    ("cpu", 50, 5, R * 3 + U * 2, [100, 300, 500, 250, 250], 2),
    ("cpu", 50, 5, R * 3 + P * 2, [100, 300, 500, None, None], 2),
    ("cpu", 100, 3, R * 3, [1010, 1030, 1020], 3),
    ("cpu", 100, 4, R * 4, [400, 95, None, None], 3),
    ("cpu", 100, 4, R * 4, [None] * 4, None),
    ("cpu", 100, 2, R * 2, [1000, None], 2),
    ("cpu", 100, 2, R * 2, [1900, None], 2),
    ("cpu", 100, 2, R * 2, [600, None], 2),
    ("cpu", 50, 3, U + R * 2, [100, 450, None], 3),
    ("cpu", 50, 3, U + R * 2, [100, 2000, None], 4),
    ("cpu", 50, 4, U + R * 3, [100, 100, 100, None], 3),
    ("cpu", 50, 2, R * 3, [100, 100, None], 2),
    # Percentages are rounded down: 55.9 of 50 is 55, which is within a tenth.
    ("cpu", 50, 10, R * 10, [559] * 10, 10),
    ("cpu", 50, 10, R * 10, [560] * 10, 12),
    # The target is more than the request: a missing value counts as the target, not as the request.
    ("cpu", 300, 4, R * 4, [200, 100, 100, None], 2),
    # Memory counts from the first moment on.
    ("memory", 50, 3, U + R * 2, [900, 900, 900], 6),
    ("rate", 15, 3, R * 3, [20, 10, 30], 4),
    ("rate", 15, 3, R * 2 + U, [50, 10, 30], 6),
    ("rate", 15, 3, R + U * 2, [50, 15, 30], 7),
    ("rate", 15, 3, R * 2 + P, [50, 40, None], 6),
    ("rate", 15, 3, R + P * 2, [50, None, None], 4),
    ("rate", 20, 5, R * 5, [12] * 5, 3),
    ("rate", 20, 3, R * 3, [20, 21, 21], 3),
    # Exactly at the target, some without a value: no value is assumed, and nothing changes.
    ("rate", 20, 5, R * 5, [20, 19, 21, None, None], 5),
    ("rate", 17, 2, R * 3, [10, 10, None], 2),
    ("rate", 20, 5, R * 3 + P * 2, [20, 19, 21, None, None], 5),
    # Values and their mean are rounded down to thousandths.
    ("rate", 20, 2, R * 2, [22.0004, 22.0009], 2),
    ("rate", 20, 2, R * 2, [22.001, 22.001], 3),
    ("rate", 0.1, 2, R * 2, [0.0999, 0.0999], 2),
    ("rate", 20, 1, R, [None], None),
    ("rate", 20, 0, [], [], None),
]


@pytest.mark.parametrize(("kind", "target", "replicas", "pods", "values", "expected"), PROPOSALS)
def test_a_metric_proposes_as_many_pods_as_in_the_controllers_own_cases(
    kind: str, target: float, replicas: int, pods: list[str], values: list[float | None], expected: int | None
) -> None:
    assert proposed(autoscaler(target, kind), replicas, pods, values) == expected


def limited(hpa: Hpa, replicas: int, wanted: int, events: Sequence[tuple[float, int, int]] = ()) -> int:
    """The pods after a sync at 0 s; `events` are earlier scalings: second, from, to."""
    controller = Controller(hpa)
    for at, before, after in events:
        controller.scale(at, before, after)
    (metric,) = hpa.metrics
    usage = {f"pod-{number}": PodMetric(metric.target * wanted / replicas + 1e-6) for number in range(replicas)}
    pods = [state(number, READY) for number in range(replicas)]
    return controller.decide(0.0, replicas, pods, {metric.name: usage}, {})


def policy(kind: str, value: int, period: int) -> dict[str, Any]:
    return {"type": kind, "value": value, "periodSeconds": period}


def rules(*policies: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"stabilizationWindowSeconds": 0, "policies": list(policies)} | more


FOUR, TWO = policy("Pods", 4, 60), policy("Pods", 2, 60)
TENTH, FIFTH, HALF = policy("Percent", 10, 60), policy("Percent", 20, 60), policy("Percent", 50, 60)
# The behavior, the current pods, the proposal, earlier scalings, and the pods after the sync.
LIMITS: list[Any] = [
    ({"scaleUp": rules(policy("Percent", 200, 60))}, 5, 8, [], 8),
    ({"scaleDown": rules(policy("Percent", 100, 60))}, 5, 3, [], 3),
    ({"scaleUp": rules(FOUR)}, 5, 90, [], 9),
    ({"scaleUp": rules(FOUR)}, 5, 90, [(-30, 3, 5)], 7),
    ({"scaleUp": rules(FOUR)}, 5, 90, [(-60, 3, 5)], 9),
    ({"scaleUp": rules(FOUR)}, 5, 90, [(-30, 6, 5)], 10),
    ({"scaleUp": rules(FOUR, selectPolicy="Disabled")}, 5, 90, [], 5),
    ({"scaleUp": rules(FOUR, TWO, selectPolicy="Min")}, 5, 90, [], 7),
    ({"scaleUp": rules(HALF)}, 10, 90, [], 15),
    # A tenth more than 50 is a little over 55 in floating point, and rounded up.
    ({"scaleUp": rules(TENTH)}, 50, 900, [], 56),
    ({"scaleUp": rules(FOUR)}, 9, 90, [(-10, 1, 9)], 9),
    ({"scaleDown": rules(FIFTH)}, 10, 1, [], 8),
    ({"scaleDown": rules(FIFTH)}, 10, 1, [(-30, 11, 10)], 8),
    ({"scaleDown": rules(FIFTH)}, 10, 1, [(-30, 14, 10)], 10),
    ({"scaleDown": rules(TENTH, policy("Pods", 5, 60))}, 100, 1, [], 90),
    ({"scaleDown": rules(FIFTH, selectPolicy="Disabled")}, 10, 1, [], 10),
    ({"scaleDown": rules(TENTH, policy("Pods", 15, 60), selectPolicy="Min")}, 100, 1, [], 90),
    # A tenth fewer than three is two.
    ({"scaleDown": rules(TENTH)}, 3, 1, [], 2),
    # One fewer than there were when its period began.
    ({"scaleDown": rules(policy("Pods", 1, 120))}, 10, 1, [(-100, 4, 10)], 3),
    # But the first event is forgotten once another one of its direction, with shorter policies, has replaced it.
    ({"scaleUp": rules(policy("Pods", 4, 15)), "scaleDown": rules(policy("Pods", 1, 120))},
     10, 1, [(-100, 4, 9), (-40, 9, 10)], 8),
    ({"scaleUp": rules(policy("Pods", 4, 90)), "scaleDown": rules(policy("Pods", 1, 120))},
     10, 1, [(-100, 4, 9), (-40, 9, 10)], 3),
]  # fmt: skip


@pytest.mark.parametrize(("behavior", "replicas", "wanted", "events", "expected"), LIMITS)
def test_policies_allow_what_the_real_controllers_allow(
    behavior: dict[str, Any], replicas: int, wanted: int, events: list[tuple[float, int, int]], expected: int
) -> None:
    both = {"scaleDown": {"stabilizationWindowSeconds": 0}} | behavior
    assert limited(autoscaler(10, "rate", **both), replicas, wanted, events) == expected


@pytest.mark.parametrize(
    ("low", "high", "replicas", "wanted", "expected"),
    [
        (1, 10, 8, 12, 10),
        (3, 10, 5, 2, 3),
        # Outside the bounds, it goes to the nearer one at once, whatever policies and metrics say.
        (1, 10, 40, 90, 10),
        (20, 30, 2, 1, 20),
    ],
)
def test_the_bounds_come_before_all_else(low: int, high: int, replicas: int, wanted: int, expected: int) -> None:
    slow = rules(policy("Pods", 1, 600))
    behavior = {"scaleUp": slow, "scaleDown": slow} if not low <= replicas <= high else {"scaleDown": rules(HALF)}
    hpa = autoscaler(10, "rate", low=low, high=high, **behavior)
    assert limited(hpa, replicas, wanted) == expected


def test_scaling_to_zero_below_the_minimum_switches_the_autoscaler_off() -> None:
    (metric,) = autoscaler(10, "rate").metrics
    assert Controller(autoscaler(10, "rate")).decide(0, 0, [], {metric.name: {}}, {}) == 0


def test_values_exactly_at_the_tolerance_change_nothing() -> None:
    hpa = autoscaler(100, "rate", scaleUp={"tolerance": "0.05"}, scaleDown={"tolerance": "0.25"})
    for value, expected in ((105.0, 20), (105.01, 22), (75.0, 20), (74.9, 15)):
        assert proposed(hpa, 20, R * 20, [value] * 20) == expected
