"""Things that people do in their own manifests, and that are fine."""

from typing import Any

import pytest
from k8s_plans import EVIDENCE, IMAGE, planned
from k8s_seeds import SERVER, Change, Objects, put, sown
from k8s_seeds import seed as change_of

from k8s.manifests.objects import render_objects
from k8s.manifests.versions import SUPPORTED_VERSIONS
from k8s.verify.check import verify
from k8s.verify.located import locate_rendered
from k8s.verify.rule import Scope, Violation


def violations(*changes: Change) -> list[Violation]:
    plan = planned(evidence=EVIDENCE, image=IMAGE)
    objects: Objects = [document for group in render_objects(plan).values() for document in group]
    changed = sown(objects, change_of("", *changes))
    return verify(locate_rendered({"all.yaml": changed}), Scope(SUPPORTED_VERSIONS[-1:], None))


def rollout(objects: Objects) -> None:
    """Argo's Rollout instead of the Deployment."""
    deployment: dict[str, Any] = next(document for document in objects if document["kind"] == "Deployment")
    deployment |= {"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout"}
    deployment["spec"]["strategy"] = {"canary": {"steps": [{"setWeight": 20}]}}
    scaler = next(document for document in objects if document["kind"] == "HorizontalPodAutoscaler")
    scaler["spec"]["scaleTargetRef"] = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout", "name": "digits"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GOOGLE_APPLICATION_CREDENTIALS", "/var/run/secrets/key.json"),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", "/var/run/secrets/token"),
        ("DB_PASSWORD_FILE", "/run/secrets/db"),
        ("API_KEY_PATH", "/keys"),
        ("TS_DISABLE_TOKEN_AUTHORIZATION", "true"),
    ],
)
def test_a_variable_with_the_path_of_a_secret_is_no_secret(name: str, value: str) -> None:
    assert violations(put("Deployment", f"{SERVER} env", [{"name": name, "value": value}])) == []


def test_one_endpoint_for_readiness_and_liveness_is_fine_if_liveness_waits_longer() -> None:
    assert violations(put("Deployment", f"{SERVER} readinessProbe httpGet path", "/live")) == []


def test_the_metrics_port_may_be_opened_to_named_clients_only() -> None:
    prometheus = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    scraped, public = ({"from": clients, "ports": [{"port": 8082}]} for clients in ([prometheus], []))
    assert violations(put("NetworkPolicy", "spec ingress 2", scraped)) == []
    assert {finding.rule for finding in violations(put("NetworkPolicy", "spec ingress 2", public))} == {"port-exposed"}
    management = scraped | {"ports": [{"port": 8081}]}
    assert {finding.rule for finding in violations(put("NetworkPolicy", "spec ingress 2", management))} == {
        "port-exposed"
    }


def test_a_custom_workload_is_checked_like_a_deployment() -> None:
    findings = violations(rollout)
    assert [(finding.rule, finding.level) for finding in findings if finding.rule == "kind-unknown"] == [
        ("kind-unknown", "warning")
    ]
    assert [str(finding) for finding in findings if finding.level == "error"] == []
    latest = violations(rollout, put("Rollout", f"{SERVER} image", "registry.local/digits:latest"))
    assert "image-digest" in {finding.rule for finding in latest}
