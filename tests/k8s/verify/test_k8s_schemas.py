from typing import Any

import pytest
import yaml

from marina.k8s.manifests.versions import SUPPORTED_VERSIONS
from marina.k8s.verify.objects import LocatedDocument
from marina.k8s.verify.schemas import mistakes

ARGO = "argoproj.io/v1alpha1"
OPERATOR, GATEWAY = "monitoring.coreos.com/v1", "gateway.networking.k8s.io/v1"


def texts(text: str | dict[str, Any], version: str = "1.36") -> list[str]:
    document = LocatedDocument(yaml.safe_load(text) if isinstance(text, str) else text, "a.yaml")
    found = mistakes(document.data, version)
    return [f"{document.root.at(*mistake.path).field}: {mistake.text}" for mistake in found]


def test_every_mistake_in_an_object_is_reported_with_its_field() -> None:
    text = """
    apiVersion: v1
    kind: Service
    metadata: {name: a}
    spec:
      selektor: {a: b}
      type: 5
      ports: [{targetPort: [1], protocol: TCP}]
    """
    assert sorted(texts(text)) == [
        "spec.ports[0].port: missing, but required",
        "spec.ports[0].targetPort: got a list of 1, allowed: text or a whole number",
        "spec.selektor: unknown field, did you mean `selector`?",
        "spec.type: got `5`, allowed: text",
    ]


def test_a_status_is_not_checked_because_the_server_ignores_it() -> None:
    spec = "{scaleTargetRef: {kind: a, name: a}, maxReplicas: 1}"
    assert texts(f"{{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, spec: {spec}, status: {{}}}}") == []


def test_a_kind_that_is_not_in_the_api_version_is_a_mistake() -> None:
    for kind in ("Deploymnt", "A" * 400, "\0", "../../pod"):
        assert texts({"apiVersion": "apps/v1", "kind": kind}) == [
            f"apiVersion: got `apps/v1`, in which there is no `{kind}`"
        ]
    assert texts("{apiVersion: policy/v1beta1, kind: PodDisruptionBudget}")
    assert texts("{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, rules: []}") == []


def test_a_field_is_a_mistake_in_versions_before_its_introduction() -> None:
    pod = "{apiVersion: v1, kind: Pod, spec: {containers: [{name: a}], volumes: [{name: b, image: {reference: c}}]}}"
    assert [bool(texts(pod, version)) for version in ("1.30", "1.31", "1.37")] == [True, False, False]


@pytest.mark.parametrize(
    ("kind", "version", "spec", "said"),
    [
        ("ServiceMonitor", OPERATOR, "{selector: {}, endpoints: [{port: a, path: /m}]}", []),
        ("ServiceMonitor", OPERATOR, "{endpoints: [{port: a}]}",
         ["spec.selector: missing, but required"]),
        ("PodMonitor", OPERATOR, "{selector: {matchLabel: {}}, podMetricsEndpoints: [{portNumber: 8090}]}",
         ["spec.selector.matchLabel: unknown field, did you mean `matchLabels`?"]),
        ("PodMonitor", OPERATOR, "{selector: {}, podMetricsEndpoints: [{portNumber: 99999}]}",
         ["spec.podMetricsEndpoints[0].portNumber: got `99999`, allowed: 65535 or less"]),
        ("PrometheusRule", OPERATOR, "{groups: [{name: a, rules: [{alert: b, expr: up, for: 5m}]}]}", []),
        ("PrometheusRule", OPERATOR, "{groups: [{name: a, rules: [{expr: up}]}]}",
         ["spec.groups[0].rules[0]: got a mapping, allowed: exactly one of the forms in the schema"]),
        ("ScaledObject", "keda.sh/v1alpha1", "{scaleTargetRef: {name: a}, triggers: []}",
         ["spec.triggers: got a list of 0, allowed: at least 1"]),
        ("ScaledObject", "keda.sh/v1alpha1", "{scaleTargetRef: {name: a}, triggers: [{type: cpu, metadata: {a: 80}}]}",
         ["spec.triggers[0].metadata.a: got `80`, allowed: text"]),
        ("HTTPRoute", GATEWAY, "{rules: [{matches: [{path: {type: Prefix}}]}]}",
         ["spec.rules[0].matches[0].path.type: got `\"Prefix\"`, allowed: `Exact`, `PathPrefix`, `RegularExpression`"]),
        ("Rollout", ARGO, "{strategy: {canary: {steps: [{setWeigth: 1}]}}}",
         ["spec.strategy.canary.steps[0].setWeigth: unknown field, did you mean `setWeight`?"]),
        ("Rollout", ARGO, "{template: {spec: {containers: [{nam: a}]}}}",
         ["spec.template.spec.containers[0].name: missing, but required",
          "spec.template.spec.containers[0].nam: unknown field, did you mean `name`?"]),
        ("AnalysisTemplate", ARGO, "{metrics: [{name: a, count: 1, provider: {web: {url: a, jsonPath: '{$}'}}}]}", []),
        ("AnalysisTemplate", ARGO, "{metrics: [{name: a, provider: {web: {url: 'http://a', jsonpath: '{$}'}}}]}",
         ["spec.metrics[0].provider.web.jsonpath: unknown field, did you mean `jsonPath`?"]),
        ("Canary", "flagger.app/v1beta1",
         "{targetRef: {apiVersion: apps/v1, kind: Deployment, name: a}, "
         "analysis: {webhooks: [{name: a, url: b, type: confirm}]}}",
         ["spec.analysis.webhooks[0].type: got `\"confirm\"`, allowed: ``, `confirm-promotion`, `confirm-rollout`, "
          "`confirm-traffic-increase`, `event`, `post-rollout`, `pre-rollout`, `rollback`, `rollout`"]),
        ("HTTPRoute", f"{GATEWAY}beta1", "{rules: [{backendRefs: [{name: a, port: 1, weight: 9}]}]}", []),
    ],
)  # fmt: skip
def test_shipped_schemas_validate_custom_resources(kind: str, version: str, spec: str, said: list[str]) -> None:
    text = f"{{apiVersion: {version}, kind: {kind}, metadata: {{name: a}}, spec: {spec}}}"
    assert [texts(text, supported) for supported in SUPPORTED_VERSIONS] == [said] * len(SUPPORTED_VERSIONS)
