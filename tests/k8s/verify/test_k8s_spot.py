"""Whether a pod can end, and be replaced, within the notice of a spot node."""

from typing import Any

import pytest
from k8s_plans import planned

from marina.k8s.manifests import render_objects
from marina.k8s.manifests.notes import derived_numbers
from marina.k8s.verify import verify

FITS = {"serving.drain_propagation_s": 5, "serving.drain_timeout_s": 5}
ROUTE = {"kubernetes.route": {"gateway": "edge/public"}}


def spot(provider: str, **fields: Any) -> dict[str, Any]:
    return {"kubernetes.spot": {"provider": provider, **fields}}


def said(changes: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Level, text and hint of what the rule finds."""
    plan = planned(changes)
    findings = verify(render_objects(plan), plan, (plan.oldest_kubernetes,))
    return [(each.level, each.text, each.hint) for each in findings if each.rule == "spot-drain-fits"]


def test_the_default_drain_does_not_fit_into_the_notice_of_gke() -> None:
    ((level, text, hint),) = said(spot("gke"))
    assert level == "error"
    assert text == "got 40 s, but pods on a spot node of gke have 15 s: propagation 5 + answers 30 + 5 to end"
    assert hint.startswith(
        "serving: {drain_propagation_s: 5, drain_timeout_s: 5}, or kubernetes: {spot: {provider: gke"
    )


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(spot("gke") | FITS, id="the lines that the rule says"),
        pytest.param(spot("gke", notice_s=120), id="a node pool with a longer grace period"),
        pytest.param(spot("eks"), id="eks"),
        pytest.param(spot("aks") | FITS, id="aks"),
        pytest.param(spot("eks") | ROUTE | {"serving.drain_propagation_s": 17}, id="a load balancer that is late"),
    ],
)
def test_what_fits_is_sound(changes: dict[str, Any]) -> None:
    assert said(changes) == []


def test_a_propagation_that_leaves_no_time_for_an_answer_is_shortened() -> None:
    ((_, _, hint),) = said(spot("gke") | {"serving.drain_propagation_s": 17, "slo.p99_ms": 2500})
    assert hint.startswith("serving: {drain_propagation_s: 7, drain_timeout_s: 3}")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        # 120 s of notice, 40 s of grace: in 80 s, no other pod is ready, so the second of a node would be killed.
        pytest.param(spot("eks", pods_per_node=2), "allowed: 1: evicted one by one, each replaced in", id="evicted"),
        pytest.param(spot("gke", pods_per_node=2) | FITS, "allowed: 1: all end at once, and", id="all at once"),
    ],
)
def test_more_pods_on_a_node_than_can_be_replaced_are_too_many(changes: dict[str, Any], text: str) -> None:
    ((level, got, _),) = said(changes)
    assert level == "error"
    assert text in got


def test_a_load_balancer_that_is_later_than_the_pods_is_a_warning() -> None:
    ((level, text, hint),) = said(spot("eks") | ROUTE)
    assert (level, hint) == ("warning", "serving: {drain_propagation_s: 17}")
    assert "an ALB that sends to pods goes on for 17 s, and they stop after 5 s" in text


def test_what_follows_from_the_notice_is_shown() -> None:
    shown = {number.name: number.value for number in derived_numbers(planned(spot("eks", on_demand="40%")))}
    assert shown["pods on demand"] == "2 of 5"
    assert shown["notice of a spot node"] == "120 s"
    assert shown["pods on a spot node"] == "at most 1"
    assert "notice of a spot node" not in {number.name for number in derived_numbers(planned())}
