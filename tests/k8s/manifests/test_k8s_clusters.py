"""How a cluster affects manifests: the form of its quantities, who chooses users, and where its DNS is."""

from collections.abc import Iterator
from typing import Any

import pytest
from k8s_plans import EVIDENCE, OPTIONS, documents, planned

from marina.config.quantity import canonical
from marina.k8s.manifests.load_job import LoadJob, load_objects
from marina.k8s.manifests.plan import Plan


def the_only(plan: Plan, kind: str) -> dict[str, Any]:
    return next(document for document in documents(plan) if document["kind"] == kind)


def pod(plan: Plan) -> dict[str, Any]:
    spec: dict[str, Any] = the_only(plan, "Deployment")["spec"]["template"]["spec"]
    return spec


def test_the_autoscaler_uses_the_cpu_of_the_server_alone() -> None:
    metrics = the_only(planned(), "HorizontalPodAutoscaler")["spec"]["metrics"]
    assert metrics[-1]["containerResource"]["container"] == "server"
    triggers = the_only(planned({"scaling.autoscaler": "keda"}), "ScaledObject")["spec"]["triggers"]
    assert triggers[-1]["metadata"] == {"value": "80", "containerName": "server"}


def quantities_in(data: Any) -> Iterator[str]:
    """Every quantity in an object, found by the names of its fields."""
    if isinstance(data, list):
        for item in data:
            yield from quantities_in(item)
    elif isinstance(data, dict):
        for key, value in data.items():
            if key in ("limits", "requests") and isinstance(value, dict):
                yield from value.values()
            elif key in ("sizeLimit", "averageValue"):
                yield value
            else:
                yield from quantities_in(value)


@pytest.mark.parametrize("changes", OPTIONS)
def test_every_quantity_is_written_as_the_server_stores_it(changes: dict[str, Any]) -> None:
    odd = {"kubernetes.resources.cpu": "2000m", "kubernetes.resources.memory": "2048Mi"}
    job = LoadJob(name="digits-load-1", image="registry.local/load:1", text="{}", parts=2, seconds=60)
    for plan in (planned(changes, evidence=EVIDENCE), planned(changes | odd)):
        quantities = set(quantities_in([*documents(plan), *load_objects(plan, job)]))
        assert quantities
        assert quantities == set(map(canonical, quantities))
    assert {"2", "2Gi"} <= set(quantities_in(the_only(planned(odd), "Deployment")))


def test_without_a_user_in_the_spec_the_pods_set_none() -> None:
    security = pod(planned({"kubernetes": {"run_as_user": None}}))["securityContext"]
    assert security == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert pod(planned())["securityContext"]["runAsUser"] == 10001


def test_every_policy_allows_the_dns_servers_in_the_spec() -> None:
    plan = planned(
        {"kubernetes.network": {"egress": ["10.0.0.0/8:443"], "dns": ["openshift-dns:5353", "10.9.0.0/16:53"]}}
    )
    job = LoadJob(name="digits-load-1", image="registry.local/load:1", text="{}", parts=2, seconds=60)
    (of_load,) = [document for document in load_objects(plan, job) if document["kind"] == "NetworkPolicy"]
    for policy in (the_only(plan, "NetworkPolicy"), of_load):
        namespace, block = policy["spec"]["egress"][-2:]
        assert namespace == {
            "to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "openshift-dns"}}}],
            "ports": [{"port": 5353, "protocol": "UDP"}, {"port": 5353, "protocol": "TCP"}],
        }
        assert block["to"] == [{"ipBlock": {"cidr": "10.9.0.0/16"}}]
