from copy import deepcopy
from random import Random
from typing import Any

import pytest
import yaml
from k8s_plans import EVIDENCE, FULL, IMAGE, planned

from marina.k8s.manifests.objects import render_objects
from marina.k8s.manifests.versions import SUPPORTED_VERSIONS
from marina.k8s.verify.check import verify
from marina.k8s.verify.located import LocatedDocument, locate_rendered
from marina.k8s.verify.rule import Scope
from marina.k8s.verify.schemas import Schemas, served

CUSTOM = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.org}
spec:
  group: example.org
  names: {kind: Widget}
  versions:
  - name: v1
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            required: [size, shape]
            properties:
              size: {x-kubernetes-int-or-string: true}
              colour: {type: string, nullable: true}
              labels: {type: object, additionalProperties: {type: string}}
              shape: {type: string, default: round, enum: [round, flat]}
              free: {type: object, properties: {}, x-kubernetes-preserve-unknown-fields: true}
"""
OPERATOR, GATEWAY = "monitoring.coreos.com/v1", "gateway.networking.k8s.io/v1"
# Values of every type, none of which fits all fields.
ODD: list[Any] = [None, 1, -1, 1.5, True, "x", "", [], {}, [1], [None], ["x"], {"a": 1}, {"x": None}, [{"name": 1}]]


def texts(text: str, version: str = "1.36", beside: str = "") -> list[str]:
    document = LocatedDocument(yaml.safe_load(text), "a.yaml")
    others = [LocatedDocument(yaml.safe_load(beside), "b.yaml")] if beside else []
    mistakes = Schemas(others).mistakes(document, version)
    return [f"{document.root.at(*mistake.path).field}: {mistake.text}" for mistake in mistakes]


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


@pytest.mark.parametrize("wrong", ["{type: odd}", "{properties: [a]}", "{properties: {b: 1}}", "{minimum: x}", "5"])
def test_a_definition_that_is_wrong_itself_stops_no_check(wrong: str) -> None:
    widget = "{apiVersion: example.org/v1, kind: Widget, metadata: {name: a}, spec: {size: 1, wrong: 1}}"
    beside = CUSTOM + f"              wrong: {wrong}\n"
    assert all(text.startswith("spec.wrong: ") for text in texts(widget, beside=beside))


def test_a_status_is_not_checked_because_the_server_ignores_it() -> None:
    spec = "{scaleTargetRef: {kind: a, name: a}, maxReplicas: 1}"
    assert texts(f"{{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, spec: {spec}, status: {{}}}}") == []


def test_a_kind_with_any_name_is_unknown() -> None:
    for kind in ("A" * 400, "\0", "../../pod"):
        document = LocatedDocument({"apiVersion": "v1", "kind": kind}, "a.yaml")
        assert not Schemas().knows(document, "1.36")


def test_a_field_is_a_mistake_in_versions_before_its_introduction() -> None:
    pod = "{apiVersion: v1, kind: Pod, spec: {containers: [{name: a}], volumes: [{name: b, image: {reference: c}}]}}"
    assert [bool(texts(pod, version)) for version in ("1.30", "1.31", "1.37")] == [True, False, False]


def test_the_api_versions_of_a_kind_are_known_for_each_version() -> None:
    assert served("HorizontalPodAutoscaler", "1.37") == ["autoscaling/v1", "autoscaling/v2"]
    assert served("ClusterRole", "1.30") == ["rbac.authorization.k8s.io/v1"]
    assert served("Deploymnt", "1.30") == []


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("{size: 1, labels: {a: b}, colour: null, free: {any: 1}}", []),
        ("{size: 10%}", []),
        ("{size: 1, shape: null, labels: null}", []),
        ("{size: null}", ["spec.size: missing, but required"]),
        ("{size: 1, labels: {a: [null]}}", ["spec.labels.a: got a list of 1, allowed: text"]),
        ("{size: [1]}", ["spec.size: got a list of 1, allowed: a whole number or text"]),
        ("{colour: 1}", ["spec.size: missing, but required", "spec.colour: got `1`, allowed: text"]),
        ("{size: 1, collour: x}", ["spec.collour: unknown field, did you mean `colour`?"]),
        ("{size: 1, labels: {a: 1}}", ["spec.labels.a: got `1`, allowed: text"]),
    ],
)
def test_a_definition_among_the_objects_validates_its_kind(spec: str, said: list[str]) -> None:
    widget = f"{{apiVersion: example.org/v1, kind: Widget, metadata: {{name: a}}, spec: {spec}}}"
    assert sorted(texts(widget, beside=CUSTOM)) == sorted(said)


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
        ("PrometheusRule", OPERATOR, "{groups: [{name: a, rules: [{alert: b, expr: up, for: , labels: }]}]}", []),
        ("PrometheusRule", OPERATOR, "{groups: [{name: a, rules: [{expr: up}]}]}",
         ["spec.groups[0].rules[0]: got a mapping, allowed: exactly one of the forms in the schema"]),
        ("ScaledObject", "keda.sh/v1alpha1", "{scaleTargetRef: {name: a}, triggers: []}",
         ["spec.triggers: got a list of 0, allowed: at least 1"]),
        ("ScaledObject", "keda.sh/v1alpha1", "{scaleTargetRef: {name: a}, triggers: [{type: cpu, metadata: {a: 80}}]}",
         ["spec.triggers[0].metadata.a: got `80`, allowed: text"]),
        ("HTTPRoute", GATEWAY, "{rules: [{matches: [{path: {type: Prefix}}]}]}",
         ["spec.rules[0].matches[0].path.type: got `\"Prefix\"`, allowed: `Exact`, `PathPrefix`, `RegularExpression`"]),
        ("HTTPRoute", f"{GATEWAY}beta1", "{rules: [{backendRefs: [{name: a, port: 1, weight: 9}]}]}", []),
    ],
)  # fmt: skip
def test_shipped_schemas_validate_custom_resources(kind: str, version: str, spec: str, said: list[str]) -> None:
    text = f"{{apiVersion: {version}, kind: {kind}, metadata: {{name: a}}, spec: {spec}}}"
    assert [texts(text, supported) for supported in SUPPORTED_VERSIONS] == [said] * len(SUPPORTED_VERSIONS)


@pytest.mark.slow
def test_no_value_in_any_field_crashes_a_rule() -> None:
    plan = planned(FULL, evidence=EVIDENCE, image=IMAGE)
    documents = [document for in_file in render_objects(plan).values() for document in in_file]
    objects = [document for document in documents if "dashboard" not in document["metadata"]["name"]]
    places = [(index, path) for index, doc in enumerate(objects) for path in _paths(doc) if path]
    draw = Random(0)
    for index, path in draw.sample(places, 150):
        changed = deepcopy(objects)
        parent: Any = changed[index]
        for key in path[:-1]:
            parent = parent[key]
        parent[path[-1]] = draw.choice(ODD)
        verify(locate_rendered({"all.yaml": changed}), Scope(("1.36",), draw.choice([None, plan])))


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(inside for key, inner in below for inside in _paths(inner, (*path, key)))]
