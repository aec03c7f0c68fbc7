"""The InferenceService: Marina's pod as it is, and an autoscaler that finds what KServe makes of it."""

import json
from typing import Any

import pytest
from k8s_plans import EVIDENCE, FULL, IMAGE, planned

from k8s.manifests.objects import render
from k8s.manifests.versions import SUPPORTED_VERSIONS
from k8s.platforms.kserve import kserve_files
from k8s.verify.schemas import _definitions, _validator

RECORDS: dict[str, Any] = {"evidence": EVIDENCE, "image": IMAGE}
PLANS = [pytest.param({}, id="defaults"), pytest.param(FULL, id="everything")]
# What a predictor has beside the fields of a pod.
OF_THE_PREDICTOR = {"annotations", "deploymentStrategy", "labels", "maxReplicas", "minReplicas"}


def service(changes: dict[str, Any]) -> dict[str, Any]:
    (made,) = kserve_files(planned(changes, **RECORDS))["40-inference-service.yaml"]
    return made


@pytest.mark.parametrize("changes", PLANS)
def test_the_pod_is_marinas_own_under_the_name_that_kserve_looks_for(changes: dict[str, Any]) -> None:
    template = render(planned(changes, **RECORDS))["40-deployment.yaml"][0]["spec"]["template"]
    predictor = service(changes)["spec"]["predictor"]
    pod = {key: value for key, value in predictor.items() if key not in OF_THE_PREDICTOR}
    assert json.loads(json.dumps(pod).replace('"kserve-container"', '"server"')) == template["spec"]
    assert predictor["labels"] == template["metadata"]["labels"]
    (container,) = predictor["containers"]
    assert container["name"] == "kserve-container"
    assert {"livenessProbe", "readinessProbe", "startupProbe"} <= set(container)
    # KServe sends clients to the first port.
    assert container["ports"][0]["containerPort"] == 8080
    assert predictor["terminationGracePeriodSeconds"] == 40


@pytest.mark.parametrize("changes", PLANS)
def test_the_predictor_is_a_pod_as_every_version_knows_it(changes: dict[str, Any]) -> None:
    predictor = service(changes)["spec"]["predictor"]
    pod = {key: value for key, value in predictor.items() if key not in OF_THE_PREDICTOR}
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": pod}
    for version in SUPPORTED_VERSIONS:
        validator = _validator("Pod", "v1", version)
        assert validator is not None
        assert _definitions(version)
        assert [error.message for error in validator.iter_errors(document)] == []


def test_marinas_autoscaler_finds_the_deployment_that_kserve_makes() -> None:
    made = service({})
    assert made["metadata"]["annotations"]["serving.kserve.io/autoscalerClass"] == "external"
    files = kserve_files(planned({}, **RECORDS))
    (autoscaler,) = files["70-autoscaler.yaml"]
    assert autoscaler["spec"]["scaleTargetRef"]["name"] == "digits-predictor"
    containers = [metric["containerResource"]["container"] for metric in autoscaler["spec"]["metrics"][1:]]
    assert containers == ["kserve-container"]
    (budget,) = files["60-disruption-budget.yaml"]
    assert budget["spec"]["selector"]["matchLabels"].items() <= made["spec"]["predictor"]["labels"].items()
    scaled = kserve_files(planned({"scaling.autoscaler": "keda"}, **RECORDS))["keda/scaled-object.yaml"][0]
    assert scaled["spec"]["scaleTargetRef"]["name"] == "digits-predictor"
    assert scaled["spec"]["triggers"][1]["metadata"]["containerName"] == "kserve-container"
    assert (
        service({"scaling.autoscaler": "none"})["metadata"]["annotations"]["serving.kserve.io/autoscalerClass"]
        == "none"
    )


def test_expressions_look_at_the_container_that_is_there() -> None:
    text = json.dumps(kserve_files(planned({}, **RECORDS)))
    assert 'container=\\\\\\"server' not in text
    assert 'container=\\"server' not in text
    assert "kserve-container" in json.dumps(kserve_files(planned({}, **RECORDS))["monitoring/rules.yaml"])


def test_what_kserve_makes_itself_is_not_rendered() -> None:
    kinds = {document["kind"] for documents in kserve_files(planned({}, **RECORDS)).values() for document in documents}
    assert not kinds & {"Deployment", "Service"}
