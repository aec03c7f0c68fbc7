"""The spec's affinity merged with the node labels that a package needs."""

from typing import Any

import pytest
from k8s_plans import planned

from marina.config.errors import InputError
from marina.k8s.manifests.objects import render_objects

REQUIRED, PREFERRED = (
    "requiredDuringSchedulingIgnoredDuringExecution",
    "preferredDuringSchedulingIgnoredDuringExecution",
)
TARGET = {"model.cpu_target": "amx"}
OURS = {"key": "cpu", "operator": "In", "values": ["amx"]}
ZONE_A = {"key": "zone", "operator": "In", "values": ["a"]}
ZONE_B = {"key": "zone", "operator": "NotIn", "values": ["b"]}
NODE = {"key": "metadata.name", "operator": "In", "values": ["node-1"]}
PREFERENCE = [{"weight": 1, "preference": {"matchExpressions": [ZONE_A]}}]
APART = {"podAntiAffinity": {PREFERRED: []}}


@pytest.fixture(autouse=True)
def _one_label(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "marina.k8s.manifests.plan.node_labels", lambda target: {"cpu": target} if target == "amx" else {}
    )


def affinity(given: dict[str, Any] | None, changes: dict[str, Any] = TARGET) -> Any:
    pod = {"kubernetes.pod": {"affinity": given}} if given is not None else {}
    (deployment,) = render_objects(planned(changes | pod))["40-deployment.yaml"]
    return deployment["spec"]["template"]["spec"].get("affinity")


def terms(*some: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(some)}} | more}


# The spec's affinity, and the affinity of the pods.
MERGED: list[Any] = [
    pytest.param(None, terms({"matchExpressions": [OURS]}), id="nothing"),
    pytest.param({"nodeAffinity": {}}, terms({"matchExpressions": [OURS]}), id="an empty affinity"),
    pytest.param({"nodeAffinity": {REQUIRED: None}}, terms({"matchExpressions": [OURS]}), id="null"),
    pytest.param(APART, terms({"matchExpressions": [OURS]}) | APART, id="pods apart"),
    pytest.param({"nodeAffinity": {PREFERRED: PREFERENCE}},
                 terms({"matchExpressions": [OURS]}, **{PREFERRED: PREFERENCE}), id="preferred only"),
    pytest.param(terms({"matchExpressions": [ZONE_A]}), terms({"matchExpressions": [ZONE_A, OURS]}), id="one term"),
    pytest.param(terms({"matchExpressions": [ZONE_A]}, {"matchExpressions": [ZONE_B]}),
                 terms({"matchExpressions": [ZONE_A, OURS]}, {"matchExpressions": [ZONE_B, OURS]}), id="two terms"),
    pytest.param(terms({"matchFields": [NODE]}), terms({"matchFields": [NODE], "matchExpressions": [OURS]}),
                 id="fields of the node"),
    pytest.param(terms({"matchExpressions": [OURS, ZONE_A]}), terms({"matchExpressions": [OURS, ZONE_A]}),
                 id="named already"),
    # An empty term matches no node; with Marina's requirements in it, it would match some.
    pytest.param(terms({}, {"matchExpressions": [ZONE_A]}), terms({}, {"matchExpressions": [ZONE_A, OURS]}),
                 id="an empty term"),
    pytest.param(terms({"matchExpressions": [ZONE_A]}, **{PREFERRED: PREFERENCE}),
                 terms({"matchExpressions": [ZONE_A, OURS]}, **{PREFERRED: PREFERENCE}), id="both"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "expected"), MERGED)
def test_the_packages_requirements_are_added_to_each_required_term(
    given: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert affinity(given) == expected


@pytest.mark.parametrize("given", [case.values[0] for case in MERGED], ids=[case.id for case in MERGED])
def test_without_a_cpu_target_the_spec_s_affinity_is_unchanged(given: dict[str, Any]) -> None:
    assert affinity(given, {}) == given


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (terms(), f"nodeAffinity.{REQUIRED}.nodeSelectorTerms`: got `[]`, allowed: a list of at least one term"),
        (terms("a"), "nodeSelectorTerms`: got `['a']`, allowed: a list of at least one term"),  # type: ignore[arg-type]
        ({"nodeAffinity": [1]}, "`kubernetes.pod.affinity.nodeAffinity`: got `[1]`, allowed: a mapping"),
        ({"nodeAffinity": {REQUIRED: 1}}, f"nodeAffinity.{REQUIRED}`: got `1`, allowed: a mapping"),
        (terms({"matchExpressions": "x"}), "nodeSelectorTerms.matchExpressions`: got `x`, allowed: a list"),
    ],
    ids=lambda case: str(case)[-40:],
)
def test_a_malformed_affinity_is_refused_with_the_place_of_the_mistake(given: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError) as caught:
        affinity(given)
    assert text in str(caught.value)
