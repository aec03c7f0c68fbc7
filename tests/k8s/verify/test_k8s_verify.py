import json
from collections.abc import Sequence
from typing import Any

import pytest
from k8s_plans import EVIDENCE, IMAGE, OPTIONS, documents, planned
from k8s_seed_table import SEEDS
from k8s_seeds import POD, Objects, Seed, put, seed, sown

from marina.k8s.manifests.load_job import LoadJob, load_objects
from marina.k8s.manifests.objects import render_objects
from marina.k8s.manifests.plan import Plan
from marina.k8s.manifests.versions import SUPPORTED_VERSIONS
from marina.k8s.verify.check import all_rules, verify
from marina.k8s.verify.located import locate_rendered
from marina.k8s.verify.rule import Scope, Violation


def _sound(base: dict[str, Any]) -> tuple[Plan, Objects]:
    plan = planned(base, evidence=EVIDENCE, image=IMAGE)
    return plan, documents(plan)


def _found(objects: Objects, scope: Scope) -> list[Violation]:
    return verify(locate_rendered({"all.yaml": objects}), scope)


def _told(findings: Sequence[Violation]) -> str:
    return "\n".join(f"{finding.rule}: {finding}" for finding in findings)


@pytest.mark.parametrize("defect", SEEDS, ids=lambda case: case.rule)
def test_a_seeded_defect_is_found_by_its_rule_and_by_no_other(defect: Seed) -> None:
    plan, objects = _sound(defect.base)
    # The tests of schemas cover the versions in between.
    scope = Scope((SUPPORTED_VERSIONS[0], SUPPORTED_VERSIONS[-1]), None if defect.foreign else plan)
    findings = _found(sown(objects, defect), scope)
    assert {finding.rule for finding in findings} == {defect.rule}, _told(findings)
    assert all(finding.text and finding.hint and finding.object for finding in findings)


@pytest.mark.parametrize("base", {json.dumps(defect.base): defect.base for defect in SEEDS}.values(), ids=str)
def test_the_manifests_without_a_defect_have_no_finding(base: dict[str, Any]) -> None:
    plan, objects = _sound(base)
    assert _told(_found(objects, Scope(plan=plan))) == ""


def test_every_rule_has_a_unique_id_and_a_seeded_defect() -> None:
    ids = [rule.id for rule in all_rules()]
    assert len(ids) == len(set(ids)) >= 25
    assert {defect.rule for defect in SEEDS} == set(ids)


@pytest.mark.slow
@pytest.mark.parametrize("changes", OPTIONS)
def test_rendered_manifests_have_no_finding_for_any_option(changes: dict[str, Any]) -> None:
    target = "cuda" if changes.get("serving.device") == "cuda" else "cpu"
    ref = f"registry.local/marina/{changes.get('name', 'digits')}"
    image = IMAGE | {"target": target, "ref": ref}
    plan = planned(changes, evidence=EVIDENCE, image=image)
    versions = tuple(version for version in SUPPORTED_VERSIONS if float(version) >= float(plan.oldest_kubernetes))
    findings = verify(locate_rendered(render_objects(plan)), Scope(versions, plan))
    assert findings == [], _told(findings)


def test_the_objects_of_a_load_inside_the_cluster_have_no_finding() -> None:
    plan, objects = _sound({})
    image = f"registry.local/marina/loadtest:1@sha256:{'a' * 64}"
    job = LoadJob(name="digits-load-1", image=image, text="{}", parts=2, seconds=30.0)
    assert _told(_found([*objects, *load_objects(plan, job)], Scope(plan=plan))) == ""


def test_controls_of_the_profile_apply_only_where_it_is_enforced() -> None:
    plan, objects = _sound({})
    root = sown(objects, seed("pod-restricted", put("Deployment", f"{POD} securityContext runAsNonRoot", False)))
    alone = [document for document in root if document["kind"] != "Namespace"]
    assert [finding.level for finding in _found(root, Scope(("1.36",), plan))] == ["error"]
    assert _found(alone, Scope(("1.36",), plan)) == []


def test_a_finding_names_the_versions_it_applies_to() -> None:
    plan, objects = _sound({"kubernetes.model": {"image": f"registry.local/models@sha256:{'a' * 64}"}})
    (finding,) = _found(objects, Scope(SUPPORTED_VERSIONS, plan))
    assert (finding.rule, finding.field) == ("schema", "spec.template.spec.volumes[2].image")
    assert finding.text == "unknown field in Kubernetes 1.30"


@pytest.mark.parametrize(
    ("expression", "level"),
    [
        ("x > 1_000_000 and y{a='1_0'} > 0", None),
        ("rate(x[1h + 5m])", "warning"),
        ("rate(x[step()])", "warning"),
        ("x offset -(5m)", "warning"),
        ("rate(x[5m] anchored)", "warning"),
        ("holt_winters(x[5m], 0.5, 0.5)", "warning"),
        ("rates(x[5m])", "error"),
        ("sum(x", "error"),
        ("rate(x[5m) + rate(y[5m])", "error"),
        ("x > 1_000 and", "error"),
        ("x[-5m]", "error"),
    ],
)
def test_an_expression_is_wrong_if_no_prometheus_reads_it(expression: str, level: str | None) -> None:
    rule = {"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule", "metadata": {"name": "a"}}
    rule |= {"spec": {"groups": [{"name": "a", "rules": [{"record": "a:b", "expr": expression}]}]}}
    levels = [finding.level for finding in verify(locate_rendered({"a.yaml": [rule]}), Scope(("1.36",)))]
    assert levels == ([level] if level else [])


def test_an_operators_group_may_end_like_kubernetes_own() -> None:
    scaler = {"apiVersion": "autoscaling.k8s.io/v1", "kind": "VerticalPodAutoscaler", "metadata": {"name": "a"}}
    findings = verify(locate_rendered({"a.yaml": [scaler]}), Scope(("1.36",)))
    assert [finding.rule for finding in findings] == ["kind-unknown"]


def test_a_custom_resource_of_an_unknown_scope_does_not_miss_a_namespace() -> None:
    pool = {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "gpu"}}
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "a", "namespace": "b"}}
    assert [finding.rule for finding in _found([pool, account], Scope(("1.36",)))] == ["kind-unknown"]


@pytest.mark.parametrize(("settings", "warned"), [("=true", False), (" = TRUE\n", False), ("=false", True)])
def test_torchserve_takes_no_tokens_if_its_settings_say_so(settings: str, warned: bool) -> None:
    server = {"name": "a", "image": "i", "args": ["torchserve", "--start", "--ts-config=/c/config.properties"]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [server]}}
    data = {"config.properties": f"enable_metrics_api=true\ndisable_token_authorization{settings}"}
    configuration = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data}
    rules = {finding.rule for finding in _found([pod, configuration], Scope(("1.36",)))}
    assert ("torchserve-token" in rules) is warned


@pytest.mark.parametrize(
    ("mode", "strategy", "level"),
    [
        ("ReadWriteOncePod", {}, "error"),
        ("ReadWriteOncePod", {"rollingUpdate": {"maxUnavailable": 1}}, None),
        ("ReadWriteOncePod", {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}, None),
        ("ReadWriteOnce", {"type": "RollingUpdate"}, "warning"),
        ("ReadWriteOnce", {"type": "Recreate"}, None),
        ("ReadWriteMany", {}, None),
    ],
)
def test_a_rollout_of_one_pod_must_not_wait_for_the_claim_of_the_old_one(
    mode: str, strategy: dict[str, Any], level: str | None
) -> None:
    volume = {"name": "a", "persistentVolumeClaim": {"claimName": "a"}}
    pod = {"containers": [{"name": "a", "image": "i"}], "volumes": [volume]}
    spec = {"selector": {}, "strategy": strategy, "template": {"metadata": {"labels": {"a": "b"}}, "spec": pod}}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}, "spec": spec}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "a"}}
    findings = _found([deployment, claim | {"spec": {"accessModes": [mode]}}], Scope(("1.36",)))
    assert [finding.level for finding in findings if finding.rule == "claim-shared"] == ([level] if level else [])
