"""The InferenceService: Marina's pod unchanged, and an autoscaler that finds the Deployment that KServe makes."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from k8s_plans import EVIDENCE, FULL, IMAGE, OPTIONS, planned

from marina.config.errors import InputError
from marina.config.progress import Progress
from marina.k8s.manifests.objects import render_objects
from marina.k8s.manifests.versions import SUPPORTED_VERSIONS
from marina.k8s.platforms import write_format
from marina.k8s.platforms.kserve import kserve_files
from marina.k8s.verify.schemas import _definitions, _validator

RECORDS: dict[str, Any] = {"evidence": EVIDENCE, "image": IMAGE}
PLANS = [pytest.param({}, id="defaults"), pytest.param(FULL, id="everything")]
# The fields of a predictor that a pod does not have.
OF_THE_PREDICTOR = {"annotations", "deploymentStrategy", "labels", "maxReplicas", "minReplicas"}


def service(changes: dict[str, Any]) -> dict[str, Any]:
    (made,) = kserve_files(planned(changes, **RECORDS))["40-inference-service.yaml"]
    return made


@pytest.mark.parametrize("changes", PLANS)
def test_the_pod_is_unchanged_except_for_the_container_name_that_kserve_needs(changes: dict[str, Any]) -> None:
    template = render_objects(planned(changes, **RECORDS))["40-deployment.yaml"][0]["spec"]["template"]
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
def test_the_predictor_is_a_valid_pod_in_every_version(changes: dict[str, Any]) -> None:
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


def test_expressions_use_kserves_container_name() -> None:
    text = json.dumps(kserve_files(planned({}, **RECORDS)))
    assert 'container=\\\\\\"server' not in text
    assert 'container=\\"server' not in text
    assert "kserve-container" in json.dumps(kserve_files(planned({}, **RECORDS))["monitoring/rules.yaml"])


def test_objects_that_kserve_makes_are_not_rendered() -> None:
    kinds = {document["kind"] for documents in kserve_files(planned({}, **RECORDS)).values() for document in documents}
    assert not kinds & {"Deployment", "Service"}


# The fields of `spec.predictor` in KServe's own definition of an InferenceService (0.20), without those of
# frameworks: what is none of them, the API server drops without a word.
TAKEN = {
    "activeDeadlineSeconds", "affinity", "annotations", "automountServiceAccountToken", "containers",
    "deploymentStrategy", "dnsConfig", "dnsPolicy", "enableServiceLinks", "hostAliases", "hostIPC", "hostNetwork",
    "hostPID", "hostUsers", "hostname", "hostnameOverride", "imagePullSecrets", "initContainers", "labels",
    "maxReplicas", "minReplicas", "nodeName", "nodeSelector", "os", "overhead", "preemptionPolicy", "priority",
    "priorityClassName", "readinessGates", "resourceClaims", "resources", "restartPolicy", "runtimeClassName",
    "schedulerName", "schedulingGates", "securityContext", "serviceAccount", "serviceAccountName", "setHostnameAsFQDN",
    "shareProcessNamespace", "subdomain", "terminationGracePeriodSeconds", "tolerations", "topologySpreadConstraints",
    "volumes",
}  # fmt: skip


@pytest.mark.parametrize("changes", OPTIONS)
def test_no_option_adds_a_field_that_kserve_does_not_have(changes: dict[str, Any]) -> None:
    (made,) = kserve_files(planned(changes))["40-inference-service.yaml"]
    assert set(made["spec"]) == {"predictor"}
    predictor = made["spec"]["predictor"]
    assert set(predictor) <= TAKEN
    assert isinstance(predictor["minReplicas"], int)
    assert isinstance(predictor["maxReplicas"], int)
    assert set(predictor["deploymentStrategy"]) == {"type", "rollingUpdate"}
    # KServe's webhook checks the annotations, and its controller the first container.
    assert made["metadata"]["annotations"]["serving.kserve.io/autoscalerClass"] in ("external", "none")
    assert predictor["containers"][0]["name"] == "kserve-container"
    assert all(isinstance(value, str) for value in (predictor["annotations"] | predictor["labels"]).values())


def test_the_route_leads_to_kserves_service_and_kserve_makes_no_route() -> None:
    route = {"kubernetes.route": {"gateway": "edge/public"}}
    (made,) = kserve_files(planned(route))["gateway/http-route.yaml"]
    (backend,) = made["spec"]["rules"][0]["backendRefs"]
    assert (backend["name"], backend["port"]) == ("digits-predictor", 80)
    visible = "networking.kserve.io/visibility"
    # KServe's own route would have the same name as Marina's.
    assert service(route)["metadata"]["labels"][visible] == "cluster-local"
    assert visible not in service({})["metadata"]["labels"]


def test_another_backend_stays_in_the_route() -> None:
    backends = [{"name": "digits", "port": 8080}, {"name": "old", "port": 8080, "weight": 0}]
    patched = {
        "kubernetes.route": {"gateway": "edge/public"},
        "kubernetes.patches": [{"kind": "HTTPRoute", "merge": {"spec": {"rules": [{"backendRefs": backends}]}}}],
    }
    (made,) = kserve_files(planned(patched))["gateway/http-route.yaml"]
    assert [backend["name"] for backend in made["spec"]["rules"][0]["backendRefs"]] == ["digits-predictor", "old"]
    assert made["spec"]["rules"][0]["backendRefs"][1]["port"] == 8080


def test_expressions_use_kserves_names_for_the_deployment_and_its_pods() -> None:
    files = kserve_files(planned({"kubernetes.monitoring.labels": {"release": "p"}}, **RECORDS))
    rules = json.dumps(files["monitoring/rules.yaml"])
    assert 'deployment=\\"digits-predictor\\"' in rules
    assert 'pod=~\\"digits-predictor-[' in rules
    dashboard = files["monitoring/dashboard.yaml"][0]["data"]["marina.digits.json"]
    assert 'deployment=\\"$model-predictor\\"' in dashboard
    assert 'pod=~\\"$model-predictor-[' in dashboard
    for text in (rules, dashboard):
        for old in ('deployment=\\"digits\\"', 'deployment=\\"$model\\"', "digits-[bcd", "$model-[bcd"):
            assert old not in text
    # The autoscaler is Marina's and keeps its name.
    assert 'horizontalpodautoscaler=~\\"digits|keda-hpa-digits\\"' in rules


ILL_TYPED: list[tuple[str, dict[str, Any]]] = [
    ("ScaledObject", {"spec": {"triggers": [[]]}}),
    ("ScaledObject", {"spec": {"triggers": [{"type": "cpu", "metadata": None}]}}),
    ("ScaledObject", {"spec": {"scaleTargetRef": "digits"}}),
    ("HTTPRoute", {"spec": {"rules": {"a": 1}}}),
    ("HTTPRoute", {"spec": {"rules": [{"backendRefs": [1]}]}}),
    ("Deployment", {"spec": {"template": {"spec": {"initContainers": 7}}}}),
    ("Deployment", {"spec": {"template": {"spec": {"containers": [{"name": "server", "env": ["A"]}]}}}}),
    ("Deployment", {"metadata": {"labels": None, "annotations": None}}),
]


@pytest.mark.parametrize(("kind", "merge"), ILL_TYPED, ids=str)
def test_a_patch_may_write_anything_where_names_are_changed(kind: str, merge: dict[str, Any]) -> None:
    patches = [{"kind": kind, "merge": merge}]
    keda = {"scaling.autoscaler": "keda", "kubernetes.route": {"gateway": "edge/public", "hostnames": []}}
    assert kserve_files(planned({**keda, "kubernetes.patches": patches}, **RECORDS))


def test_a_container_that_a_patch_adds_comes_after_the_serving_one() -> None:
    sidecar = {"name": "proxy", "image": "r.local/proxy:1", "ports": [{"containerPort": 15001}]}
    change = {"spec": {"template": {"spec": {"containers": [sidecar]}}}}
    patched = {"kubernetes.patches": [{"kind": "Deployment", "merge": change}]}
    names = [container["name"] for container in service(patched)["spec"]["predictor"]["containers"]]
    assert names == ["kserve-container", "proxy"]


@pytest.mark.parametrize(("name", "said"), [("digits", True), (None, True), ("digits-pages", False)])
def test_a_patch_of_the_service_that_kserve_makes_is_named(name: str | None, said: bool, tmp_path: Path) -> None:
    patched = {"kind": "Service", "name": name, "merge": {"metadata": {"annotations": {"a": "b"}}}}
    notes = io.StringIO()
    plan = planned({"kubernetes.monitoring": {"monitor": "service"}, "kubernetes.patches": [patched]}, **RECORDS)
    write_format(plan, tmp_path, "kserve", Progress(stream=notes))
    assert notes.getvalue() == said * "note: KServe makes the Service itself, so patches of it are left out\n"


def test_fields_that_patches_took_out_are_left_out() -> None:
    template = {"metadata": {"annotations": None}, "spec": {"initContainers": None}}
    merge = {"metadata": {"labels": None}, "spec": {"strategy": None, "template": template}}
    made = service({"kubernetes.patches": [{"kind": "Deployment", "merge": merge}]})
    predictor = made["spec"]["predictor"]
    assert (made["metadata"]["labels"], predictor["annotations"], predictor["deploymentStrategy"]) == ({}, {}, {})


def test_names_and_variables_that_kserve_refuses_are_refused() -> None:
    with pytest.raises(InputError, match="`PYTHONPATH` of container `kserve-container`: KServe refuses it"):
        service({"kubernetes.pod": {"env": {"PYTHONPATH": "/opt"}}})
    with pytest.raises(InputError, match="at most 36 characters, since KServe adds `-predictor`"):
        kserve_files(planned({"name": "a" * 37}))
    assert kserve_files(planned({"name": "a" * 36}))
