import json
from copy import deepcopy
from random import Random
from typing import Any

import pytest
from k8s_plans import EVIDENCE, FULL, IMAGE, OPTIONS, planned
from k8s_seed_table import HPA, KEDA, POD, ROUTE, SEEDS, SERVER, Change, D, Seed, put, seed

from marina.k8s.manifests.load_job import LoadJob, load_objects
from marina.k8s.manifests.objects import render_objects
from marina.k8s.manifests.plan import Plan
from marina.k8s.manifests.versions import SUPPORTED_VERSIONS
from marina.k8s.verify import all_rules, verify
from marina.k8s.verify.rule import Violation
from marina.k8s.verify.schemas import mistakes

ENDS = (SUPPORTED_VERSIONS[0], SUPPORTED_VERSIONS[-1])
PROXY = {"name": "proxy", "image": f"proxy@sha256:{'a' * 64}"}
QUERY = "spec triggers 0 metadata query"


def plan_of(base: dict[str, Any]) -> Plan:
    return planned(base, evidence=EVIDENCE, image=IMAGE)


def told(findings: list[Violation]) -> str:
    return "\n".join(f"{finding.rule}: {finding}" for finding in findings)


def found(*changes: Change, base: dict[str, Any] | None = None) -> list[Violation]:
    plan = plan_of(base or {})
    return verify(seed("", *changes).sown(render_objects(plan)), plan, SUPPORTED_VERSIONS[-1:])


@pytest.mark.parametrize("defect", SEEDS, ids=lambda case: case.rule)
def test_a_seeded_defect_is_found_by_its_rule_and_by_no_other(defect: Seed) -> None:
    plan = plan_of(defect.base)
    findings = verify(defect.sown(render_objects(plan)), plan, ENDS)
    assert {finding.rule for finding in findings} == {defect.rule}, told(findings)
    assert all(finding.text and finding.hint and finding.object for finding in findings)


@pytest.mark.parametrize("base", {json.dumps(defect.base): defect.base for defect in SEEDS}.values(), ids=str)
def test_the_manifests_without_a_defect_have_no_finding(base: dict[str, Any]) -> None:
    plan = plan_of(base)
    assert told(verify(render_objects(plan), plan)) == ""


def test_every_rule_has_a_unique_id_and_a_seeded_defect() -> None:
    ids = [rule.id for rule in all_rules()]
    assert len(ids) == len(set(ids)) >= 20
    # The tests of the folder edit it.
    assert {defect.rule for defect in SEEDS} | {"folder-edited"} == set(ids)


@pytest.mark.slow
@pytest.mark.parametrize("changes", OPTIONS)
def test_rendered_manifests_have_no_finding_for_any_option(changes: dict[str, Any]) -> None:
    target = "cuda" if changes.get("serving.device") == "cuda" else "cpu"
    image = IMAGE | {"target": target, "ref": f"registry.local/marina/{changes.get('name', 'digits')}"}
    plan = planned(changes, evidence=EVIDENCE, image=image)
    versions = [version for version in SUPPORTED_VERSIONS if float(version) >= float(plan.oldest_kubernetes)]
    findings = verify(render_objects(plan), plan, versions)
    assert findings == [], told(findings)


def test_the_objects_of_a_load_inside_the_cluster_match_their_schemas() -> None:
    image = f"registry.local/marina/loadtest:1@sha256:{'a' * 64}"
    job = LoadJob(name="digits-load-1", image=image, text="{}", parts=2, seconds=30.0)
    for document in load_objects(plan_of({}), job):
        assert [mistakes(document, version) for version in ENDS] == [[], []]


def test_a_finding_names_the_versions_it_applies_to() -> None:
    plan = plan_of({"kubernetes.model": {"image": f"registry.local/models@sha256:{'a' * 64}"}})
    (finding,) = verify(render_objects(plan), plan)
    assert (finding.rule, finding.field) == ("schema", "spec.template.spec.volumes[2].image")
    assert finding.text == "unknown field in Kubernetes 1.30"


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param([put(D, f"{SERVER} lifecycle preStop sleep seconds", 1)], id="a short hook"),
        pytest.param([put(D, f"{POD} containers 1", PROXY)], id="a sidecar"),
        pytest.param([put(D, f"{SERVER} readinessProbe", {"tcpSocket": {"port": 8080}})], id="a probe without a path"),
        pytest.param([put(D, f"{SERVER} livenessProbe", {"exec": {"command": ["/bin/alive"]}})], id="a command"),
        pytest.param([put("NetworkPolicy", "spec ingress", [{}])], id="a policy that opens all"),
        pytest.param([put("NetworkPolicy", "spec ingress 0 ports 0", {"port": 8000, "endPort": 8089})], id="a range"),
    ],
)  # fmt: skip
def test_what_a_patch_may_do_has_no_finding(changes: list[Change]) -> None:
    assert told(found(*changes)) == ""


OTHERS = "sum(rate(nginx_requests_total[1m]))"
QUEUE = {"metric": {"name": "queue"}, "target": {"type": "Value", "value": 1}}


@pytest.mark.parametrize(
    ("base", "change"),
    [
        pytest.param(KEDA, put("ScaledObject", QUERY, OTHERS), id="a gateway's metric"),
        pytest.param(KEDA, put("ScaledObject", QUERY, "rate(x[1h + 5m])"), id="newer PromQL"),
        pytest.param({}, put(HPA, "spec metrics 2", {"type": "External", "external": QUEUE}), id="a cloud's metric"),
        pytest.param({}, put("Service", "spec ports 1", {"name": "a", "port": 9000}), id="a port of a sidecar"),
    ],
)  # fmt: skip
def test_what_only_others_can_know_is_a_warning(base: dict[str, Any], change: Change) -> None:
    findings = [finding for finding in found(change, base=base) if finding.rule != "policy-blocks-port"]
    assert [finding.level for finding in findings] == ["warning"], told(findings)


def test_a_route_may_have_backends_of_others_too() -> None:
    backends = [{"name": "digits", "port": 8080}, {"name": "old", "port": 80}]
    assert told(found(put("HTTPRoute", "spec rules 0 backendRefs", backends), base=ROUTE)) == ""


@pytest.mark.parametrize("kind", [D, "Service", "ConfigMap"])
def test_without_an_object_only_the_rules_about_the_rest_speak(kind: str) -> None:
    plan = plan_of({})
    files = {name: [each for each in some if each["kind"] != kind] for name, some in render_objects(plan).items()}
    rules = {finding.rule for finding in verify(files, plan, ENDS)}
    assert rules == ({"origin-differs"} if kind == D else set())


@pytest.mark.slow
@pytest.mark.parametrize("base", [{}, FULL], ids=["defaults", "everything"])
def test_no_value_in_any_field_crashes_a_rule(base: dict[str, Any]) -> None:
    odd: list[Any] = [None, 1, -1.5, True, "x", [], {}, [None], ["x"], {"a": 1}, [{"name": 1}], 10**400]
    plan, draw = plan_of(base), Random(0)
    rendered = {name: some for name, some in render_objects(plan).items() if "dashboard" not in name}
    places = [(name, path) for name, some in rendered.items() for path in _paths(some) if len(path) > 1]
    for name, path in draw.sample(places, 75):
        files = deepcopy(rendered)
        parent: Any = files[name]
        for key in path[:-1]:
            parent = parent[key]
        parent[path[-1]] = draw.choice(odd)
        verify(files, plan, SUPPORTED_VERSIONS[-1:])


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(inside for key, inner in below for inside in _paths(inner, (*path, key)))]
