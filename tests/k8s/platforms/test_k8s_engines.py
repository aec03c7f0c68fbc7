"""What Argo Rollouts and Flagger get: valid objects, with selectors and expressions that find every pod they make."""

import copy
import json
import re
from typing import Any

import pytest
from k8s_plans import EVIDENCE, FULL, IMAGE, OPTIONS, planned

from marina.config.errors import InputError
from marina.k8s.manifests import Plan, render_objects, with_engine
from marina.k8s.manifests.judge import PORT
from marina.k8s.verify import verify

RECORDS: dict[str, Any] = {"evidence": EVIDENCE, "image": IMAGE}
ROUTE = {"kubernetes.route": {"gateway": "edge/public", "hostnames": ["digits.example.org"]}}
NAMES = {
    "argo-rollouts": ["digits-6b5f9c7d8c-x2k4p"],
    "flagger": ["digits-6b5f9c7d8c-x2k4p", "digits-primary-7c9-zz7vq"],
}


def engined(engine: Any, changes: dict[str, Any] | None = None) -> Plan:
    return with_engine(planned(ROUTE | (changes or {}), **RECORDS), engine, "registry.local/marina/marina-loadtest:1")


def objects(plan: Plan) -> dict[str, dict[str, Any]]:
    """Every object by `Kind/name`."""
    made = [document for documents in render_objects(plan).values() for document in documents]
    return {f"{document['kind']}/{document['metadata']['name']}": document for document in made}


def template(plan: Plan) -> dict[str, Any]:
    rendered = objects(plan)
    made: dict[str, Any] = (rendered.get("Rollout/digits") or rendered["Deployment/digits"])["spec"]["template"]
    return made


def primary(plan: Plan) -> dict[str, Any]:
    """The pods that Flagger makes of the template and that clients reach, as its DeploymentController does it."""
    made, label = copy.deepcopy(template(plan)), "app.kubernetes.io/name"
    made["metadata"]["labels"][label] += "-primary"
    for constraint in made["spec"]["topologySpreadConstraints"]:
        for expression in constraint["labelSelector"].get("matchExpressions", []):
            if expression["key"] == label:
                expression["values"] = [f"{value}-primary" for value in expression["values"]]
    return made


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    assert set(selector) <= {"matchLabels", "matchExpressions"}
    expressions = selector.get("matchExpressions", [])
    assert {expression["operator"] for expression in expressions} <= {"In"}
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        labels.get(expression["key"]) in expression["values"] for expression in expressions
    )


def pods(plan: Plan) -> list[dict[str, Any]]:
    """Every kind of pod that serves."""
    return [template(plan), primary(plan)] if plan.engine == "flagger" else [template(plan)]


@pytest.mark.parametrize("engine", ["argo-rollouts", "flagger"])
@pytest.mark.parametrize("changes", OPTIONS)
def test_every_option_gives_objects_without_a_finding(engine: str, changes: dict[str, Any]) -> None:
    if "slo" in changes:
        with pytest.raises(InputError, match=f"`slo`: missing, but needed by `--format {engine}`"):
            with_engine(planned(changes | ROUTE), engine, "image")  # type: ignore[arg-type]
        return
    if engine == "flagger" and changes.get("scaling.autoscaler") == "keda":
        changes = changes | {"scaling.autoscaler": "hpa"}
    plan = with_engine(planned(changes | ROUTE), engine, "registry.local/marina/marina-loadtest:1")  # type: ignore[arg-type]
    findings = verify(render_objects(plan), plan, ("1.37",))
    assert [finding for finding in findings if finding.level == "error"] == []


@pytest.mark.parametrize("engine", ["argo-rollouts", "flagger"])
@pytest.mark.parametrize("monitor", ["pod", "service"])
def test_policy_budget_spread_and_monitor_find_every_pod(engine: str, monitor: str) -> None:
    plan = engined(engine, {"kubernetes.monitoring.monitor": monitor})
    made = objects(plan)
    for pod in pods(plan):
        labels = pod["metadata"]["labels"]
        assert selects(made["NetworkPolicy/digits"]["spec"]["podSelector"], labels)
        assert selects(made["PodDisruptionBudget/digits"]["spec"]["selector"], labels)
        scraped = (
            {"matchLabels": made["Service/digits-pages"]["spec"]["selector"]}
            if monitor == "service"
            else made["PodMonitor/digits"]["spec"]["selector"]
        )
        assert selects(scraped, labels)
        for constraint in pod["spec"]["topologySpreadConstraints"]:
            assert selects(constraint["labelSelector"], labels)
    # None of them finds the judge.
    judge = made["Deployment/digits-judge"]["spec"]["template"]["metadata"]["labels"]
    assert not selects(made["PodDisruptionBudget/digits"]["spec"]["selector"], judge)


def test_a_spread_looks_only_at_the_pods_of_its_own_deployment() -> None:
    serving, new = primary(engined("flagger")), template(engined("flagger"))
    for pod, other in ((serving, new), (new, serving)):
        for constraint in pod["spec"]["topologySpreadConstraints"]:
            assert not selects(constraint["labelSelector"], other["metadata"]["labels"])


def test_argos_pods_are_spread_by_argos_hash() -> None:
    spread = template(engined("argo-rollouts"))["spec"]["topologySpreadConstraints"]
    assert {tuple(each["matchLabelKeys"]) for each in spread} == {("rollouts-pod-template-hash",)}


@pytest.mark.parametrize("engine", ["argo-rollouts", "flagger"])
def test_every_expression_finds_every_pod(engine: str) -> None:
    plan = engined(engine)
    text = json.dumps([objects(plan)["PrometheusRule/digits"], objects(plan)["ConfigMap/digits-dashboard"]])
    patterns = set(re.findall(r'(?<!exported_)pod=~\\+"([^"\\]+)', text.replace("$model", "digits")))
    assert patterns
    for pattern in patterns:
        assert all(re.fullmatch(pattern, name) for name in NAMES[engine]), pattern
        assert not re.fullmatch(pattern, "digits-judge-6b5f9c7d8c-x2k4p")


def test_no_expression_for_argo_reads_the_series_of_a_deployment() -> None:
    text = json.dumps([*objects(engined("argo-rollouts")).values()])
    assert "kube_deployment" not in text
    assert "rollout_info_replicas_available" in text


@pytest.mark.parametrize("autoscaler", ["hpa", "keda"])
def test_argos_autoscaler_scales_the_rollout(autoscaler: str) -> None:
    made = objects(engined("argo-rollouts", {"scaling.autoscaler": autoscaler}))
    scaler = made["HorizontalPodAutoscaler/digits" if autoscaler == "hpa" else "ScaledObject/digits"]
    wanted = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout", "name": "digits"}
    assert scaler["spec"]["scaleTargetRef"] == wanted
    assert "Deployment/digits" not in made
    assert "replicas" not in made["Rollout/digits"]["spec"]


def test_argo_asks_the_judge_once_at_the_gates_end_and_anything_else_is_inconclusive() -> None:
    made = objects(engined("argo-rollouts", {"kubernetes.rollout": {"gate": {"minutes": 20}}}))
    judge, early = made["AnalysisTemplate/digits"]["spec"]["metrics"]
    assert (judge["count"], judge["initialDelay"]) == (1, "1260s")
    assert (judge["successCondition"], judge["failureCondition"]) == ('result == "PASS"', 'result == "FAIL"')
    asked = judge["provider"]["web"]
    assert (asked["url"], asked["jsonPath"]) == (f"http://digits-judge.marina.svc:{PORT}/", "{$.result}")
    # It ends before the other, so that it never decides.
    assert early["count"] * int(early["interval"].removesuffix("s")) <= 1260
    canary = made["Rollout/digits"]["spec"]["strategy"]["canary"]
    assert canary["steps"][1]["analysis"]["templates"] == [
        {"templateName": made["AnalysisTemplate/digits"]["metadata"]["name"]}
    ]
    for field, side in (("stableService", "old"), ("canaryService", "new")):
        assert canary[field] == f"digits-{side}-pages"
        assert f"Service/{canary[field]}" in made


def test_a_patch_of_the_deployment_changes_the_rollout() -> None:
    pod = template(engined("argo-rollouts", FULL))
    assert pod["metadata"]["annotations"]["team"] == "vision"
    assert "company-ca" in json.dumps(pod)


def test_flaggers_hooks_ask_the_judge_and_its_own_objects_are_left_out() -> None:
    made = objects(engined("flagger"))
    canary = made["Canary/digits"]["spec"]
    hooks = {hook["type"]: hook["url"] for hook in canary["analysis"]["webhooks"]}
    address = f"http://digits-judge.marina.svc:{PORT}"
    assert hooks == {kind: f"{address}/{kind}" for kind in ("confirm-promotion", "rollback")}
    assert "metrics" not in canary["analysis"]
    assert not {"Service/digits", "HTTPRoute/digits"} & set(made)
    assert canary["service"]["gatewayRefs"] == [{"name": "public", "namespace": "edge"}]
    assert canary["service"]["match"] == [{"uri": {"prefix": "/predictions/digits"}}]
    # Flagger finds what it renames by one of these labels in the Deployment's selector.
    selector = made["Deployment/digits"]["spec"]["selector"]["matchLabels"]
    assert next(label for label in ("app", "name", "app.kubernetes.io/name") if label in selector)


@pytest.mark.parametrize("engine", ["argo-rollouts", "flagger"])
def test_the_judge_may_read_the_pages_of_every_pod_and_everybody_its_verdict(engine: str) -> None:
    plan = engined(engine)
    made = objects(plan)
    judge = made["Deployment/digits-judge"]["spec"]["template"]
    policy = made["NetworkPolicy/digits-judge"]["spec"]
    assert selects(policy["podSelector"], judge["metadata"]["labels"])
    reads = next(rule for rule in policy["egress"] if rule["ports"][0]["port"] == 8090)
    pages = next(rule for rule in made["NetworkPolicy/digits"]["spec"]["ingress"] if rule["ports"][0]["port"] == 8090)
    assert any(
        selects(peer.get("podSelector", {"matchLabels": {"x": "y"}}), judge["metadata"]["labels"])
        for peer in pages["from"]
    )
    for pod in pods(plan):
        assert selects(reads["to"][0]["podSelector"], pod["metadata"]["labels"])
    assert policy["ingress"] == [{"from": [{"namespaceSelector": {}}], "ports": [{"port": PORT, "protocol": "TCP"}]}]
    (container,) = judge["spec"]["containers"]
    for side in ("old", "new"):
        service = made[f"Service/digits-{side}-pages"]
        assert service["spec"]["clusterIP"] == "None"
        assert f"http://digits-{side}-pages.marina.svc:8090" in container["args"]


def test_flaggers_old_pods_are_the_primary_ones() -> None:
    plan = engined("flagger")
    made = objects(plan)
    old, new = ({"matchLabels": made[f"Service/digits-{side}-pages"]["spec"]["selector"]} for side in ("old", "new"))
    serving, changed = (pod["metadata"]["labels"] for pod in (primary(plan), template(plan)))
    assert (selects(old, serving), selects(new, changed)) == (True, True)
    assert (selects(old, changed), selects(new, serving)) == (False, False)


def test_flagger_without_a_gateway_or_with_keda_is_refused() -> None:
    with pytest.raises(InputError, match=r"`kubernetes\.route`: missing, but needed by `--format flagger`"):
        with_engine(planned({}, **RECORDS), "flagger", "image")
    with pytest.raises(InputError, match=r"got `keda`, allowed with `--format flagger`: hpa, none"):
        engined("flagger", {"scaling.autoscaler": "keda"})


def test_an_agreement_that_nobody_would_check_is_refused() -> None:
    gate = {"kubernetes.rollout": {"gate": {"minutes": 20, "agreement": 0.98}}}
    with pytest.raises(InputError, match=r"agreement`: got 0\.98, not allowed with `--format argo-rollouts`"):
        engined("argo-rollouts", gate)


def test_flagger_refuses_a_name_that_its_own_would_make_too_long_for_the_expressions() -> None:
    longest = 38
    assert with_engine(planned(ROUTE | {"name": "n" * longest}), "flagger", "image")
    with pytest.raises(InputError, match=r"`name`: got .*, allowed with `--format flagger`: at most 38 characters"):
        with_engine(planned(ROUTE | {"name": "n" * (longest + 1)}), "flagger", "image")
