"""Derived numbers: what Kubernetes makes of the autoscaler's target, and the reasons that `manifests` prints."""

import re
from dataclasses import replace
from typing import Any

import pytest
from k8s_plans import EVIDENCE, planned, the_only

from marina.config.errors import InputError
from marina.config.quantity import quantity
from marina.k8s.manifests.notes import derived_numbers
from marina.k8s.manifests.objects import render_objects


@pytest.mark.parametrize("autoscaler", ["hpa", "keda"])
@pytest.mark.parametrize(
    ("metric", "value", "target"),
    [("requests", 0.0004, "0.0004"), ("requests", 1e300, "1e.300"), ("queue_time", 0.3, "0.0003")],
)
def test_a_target_that_kubernetes_cannot_count_is_refused(
    autoscaler: str, metric: str, value: float, target: str
) -> None:
    changes = {"scaling.autoscaler": autoscaler, "scaling.metric": metric, "scaling.target": value}
    allowed = re.escape("allowed: 0.001 to 1e+15, because Kubernetes counts in thousandths")
    with pytest.raises(InputError, match=f"`scaling.target`: the target is {target}, {allowed}"):
        render_objects(planned(changes))


def test_a_derived_target_is_the_one_that_the_autoscaler_gets() -> None:
    plan = planned({"scaling.metric": "queue_time", "scaling.target": 7.6})
    (pods, _) = the_only(plan, "HorizontalPodAutoscaler")["spec"]["metrics"]
    assert pods["pods"]["target"]["averageValue"] == "8m"
    assert "8 ms in the queue a pod, or 80 % cpu" in [number.value for number in derived_numbers(plan)]


@pytest.mark.parametrize(
    ("changes", "records", "memory", "reason"),
    [
        ({}, {}, "2Gi", "unmeasured: twice Java's heap and 512Mi a worker, at least 2Gi"),
        (
            {"model.image.max_pixels": 500_000_000, "serving.cache": {"mb": 268.435456}},
            {},
            "6080Mi",
            "unmeasured: twice Java's heap and 2260Mi a worker + 512Mi of kept answers, at least 2Gi",
        ),
        (
            {"serving.cache": {"mb": 268.435456}},
            {"evidence": EVIDENCE},
            "1792Mi",
            "peak 778Mi + 496Mi for the largest requests + 512Mi of kept answers",
        ),
    ],
)
def test_the_reason_for_the_memory_names_everything_that_it_is_the_sum_of(
    changes: dict[str, Any], records: dict[str, Any], memory: str, reason: str
) -> None:
    numbers = {number.name: (number.value, number.reason) for number in derived_numbers(planned(changes, **records))}
    assert numbers["memory of a pod"] == (memory, reason)


def test_memory_that_was_not_measured_has_room_for_the_model() -> None:
    small = planned()
    assert small.package
    large = replace(small, package=small.package.model_copy(update={"bytes": 3 * 2**30}))
    assert quantity(large.memory) > quantity(small.memory) / 2 + small.spec.workers * 3 * 2**30


@pytest.mark.parametrize(
    ("rollout", "reason"),
    [({}, "max_surge 25%, at most 10 pods"), ({"max_surge": 1}, "max_surge 1, at most 10 pods")],
)
def test_the_reason_for_the_room_names_the_pods_that_a_share_is_of(rollout: dict[str, Any], reason: str) -> None:
    numbers = derived_numbers(planned({"kubernetes.rollout": rollout}))
    assert {number.name: number.reason for number in numbers}["room for a rollout"] == reason
