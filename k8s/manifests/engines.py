"""The objects of engines that replace pods step by step: what Argo Rollouts and Flagger need instead of, or beside, the
plain ones. Both ask Marina's judge, and neither judges by thresholds of its own."""

from dataclasses import replace
from typing import Any

from marina.config.errors import InputError
from marina.config.spec import Spec
from marina.k8s.manifests.deployment import INFERENCE
from marina.k8s.manifests.judge import judge_objects, judge_url, pages_of, verdict_after_s
from marina.k8s.manifests.labels import metadata
from marina.k8s.manifests.network import request_timeout, route_paths
from marina.k8s.manifests.plan import Plan
from marina.k8s.manifests.yaml_text import Files, Manifest, ordered, resource
from marina.k8s.monitoring import Engine

DEPLOYMENT, ROUTE, SERVICE = "40-deployment.yaml", "gateway/http-route.yaml", "50-service.yaml"
ROLLOUT, ANALYSIS, CANARY, JUDGE = "40-rollout.yaml", "80-analysis.yaml", "80-canary.yaml", "45-judge.yaml"
# What a cluster must have for the objects of an engine.
ENGINES = {"argo-rollouts": "Argo Rollouts 1.8 or later", "flagger": "Flagger 1.37 or later and the Gateway API"}
# How often a gate is asked whether it has failed already.
_EARLY_S = 30
# The share of requests that Flagger sends to the new version while it is judged, percent.
_FLAGGERS_WEIGHT = 20
# Kubernetes cuts a pod's name to 58 characters and appends five random ones; expressions match what is before them.
_LONGEST_FLAGGERS = 38
_MATCHES = {"PathPrefix": "prefix", "Exact": "exact", "RegularExpression": "regex"}


def adapted(files: Files, plan: Plan) -> Files:
    """The objects by file as the plan's engine needs them."""
    made = _for_argo(files, plan) if plan.engine == "argo-rollouts" else _for_flagger(files, plan)
    return dict(sorted((made | {JUDGE: judge_objects(plan)}).items(), key=lambda item: ("/" in item[0], item[0])))


def with_engine(plan: Plan, engine: Engine, judge_image: str) -> Plan:
    """The plan for an engine. Raises InputError if the engine cannot do what the spec wants."""
    if plan.spec.slo is None:
        text = f"`slo`: missing, but needed by `--format {engine}`: a verdict needs an objective"
        raise InputError(f"{plan.spec.file}: {text}", hint="slo: {p99_ms: 100}")
    gate = plan.spec.kubernetes.rollout.gate
    if gate and gate.agreement is not None:
        where = plan.spec.place("kubernetes", "rollout", "gate", "agreement")
        text = f"got {gate.agreement:g}, not allowed with `--format {engine}`: only `marina deploy` compares answers"
        raise InputError(f"{where}: {text}", hint=f"leave it out, or `marina deploy {plan.spec.file}`")
    if engine == "flagger":
        _check_flagger(plan.spec)
    return replace(plan, engine=engine, judge_image=judge_image)


def _check_flagger(spec: Spec) -> None:
    if len(spec.name) > _LONGEST_FLAGGERS:
        allowed = f"allowed with `--format flagger`: at most {_LONGEST_FLAGGERS} characters, since it adds `-primary`"
        raise InputError(f"{spec.file}: `name`: got `{spec.name}`, {allowed}")
    if spec.kubernetes.route is None:
        text = "without a Gateway, Flagger sends no live request to a new version, so there is nothing to judge it by"
        raise InputError(
            f"{spec.file}: `kubernetes.route`: missing, but needed by `--format flagger`: {text}",
            hint="kubernetes: {route: {gateway: NAMESPACE/NAME}}, or `--format argo-rollouts`",
        )
    if spec.scaling.autoscaler == "keda":
        text = "Flagger would rename the model in its queries"
        where = spec.place("scaling", "autoscaler")
        raise InputError(f"{where}: got `keda`, allowed with `--format flagger`: hpa, none: {text}")


def _for_argo(files: Files, plan: Plan) -> Files:
    (deployment,) = files[DEPLOYMENT]
    rest = {name: documents for name, documents in files.items() if name != DEPLOYMENT}
    return rest | {ROLLOUT: ordered(_rollout(plan, deployment)), ANALYSIS: ordered(_analysis(plan))}


def _rollout(plan: Plan, deployment: dict[str, Any]) -> Manifest:
    """The Deployment as a Rollout: it starts one pod of the new version, and the others once the judge passed it."""
    spec = {key: value for key, value in deployment["spec"].items() if key != "strategy"}
    strategy = {
        "canaryService": pages_of(plan, "new"),
        "stableService": pages_of(plan, "old"),
        **deployment["spec"].get("strategy", {}).get("rollingUpdate", {}),
        # The smallest share: one pod.
        "steps": [{"setWeight": 1}, {"analysis": {"templates": [{"templateName": plan.name}]}}],
    }
    # A version whose pod never comes up is given up like one that fails.
    spec |= {"progressDeadlineAbort": True, "strategy": {"canary": strategy}}
    return deployment | {"apiVersion": plan.workload.api_version, "kind": plan.workload.kind, "spec": spec}


def _analysis(plan: Plan) -> Manifest:
    """One question at the gate's end: PASS is a success, FAIL a failure, and everything else inconclusive, which pauses
    the Rollout for a person. A second metric only ends a gate that has failed already."""
    after_s = verdict_after_s(plan)
    asked = {"web": {"url": judge_url(plan), "jsonPath": "{$.result}", "timeoutSeconds": 10}}
    judge = {
        "name": "judge",
        "count": 1,
        "initialDelay": f"{after_s}s",
        "successCondition": 'result == "PASS"',
        "failureCondition": 'result == "FAIL"',
        "provider": asked,
    }
    early = {
        "name": "early",
        "count": after_s // _EARLY_S,
        "interval": f"{_EARLY_S}s",
        "successCondition": 'result != "FAIL"',
        "provider": asked,
    }
    named = metadata(plan, component="judge")
    return resource("argoproj.io/v1alpha1", "AnalysisTemplate", named, spec={"metrics": [judge, early]})


def _for_flagger(files: Files, plan: Plan) -> Files:
    # Flagger makes the Service and the route of the same names.
    rest = {name: documents for name, documents in files.items() if name not in (SERVICE, ROUTE)}
    return rest | {CANARY: ordered(_canary(plan))}


def _canary(plan: Plan) -> Manifest:
    route = plan.spec.kubernetes.route
    assert route is not None
    namespace, _, gateway = route.gateway.partition("/")
    hooks = {"confirm-promotion": "passed", "rollback": "failed"}
    service = {
        "port": plan.ports.inference,
        "portName": INFERENCE,
        "targetPort": INFERENCE,
        "appProtocol": "http",
        "gatewayRefs": [{"name": gateway, "namespace": namespace}],
        "hosts": list(route.hostnames) or None,
        "match": [{"uri": {_MATCHES[kind]: value}} for kind, value in route_paths(plan)],
        "timeout": request_timeout(plan),
    }
    spec = {
        "provider": "gatewayapi:v1",
        "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": plan.name},
        "autoscalerRef": _autoscaler(plan) if plan.autoscaled else None,
        "progressDeadlineSeconds": plan.progress_deadline_s,
        "service": service,
        "analysis": {
            "interval": "30s",
            # Only a version whose pods do not come up fails by Flagger's own checks.
            "threshold": 5,
            "maxWeight": _FLAGGERS_WEIGHT,
            "stepWeight": _FLAGGERS_WEIGHT,
            # Yes to the first is PASS, yes to the second is FAIL; INVALID is no to both.
            "webhooks": [
                {"name": f"judge-{name}", "type": kind, "url": judge_url(plan, f"/{kind}"), "timeout": "10s"}
                for kind, name in hooks.items()
            ],
        },
    }
    return resource("flagger.app/v1beta1", "Canary", metadata(plan), spec=spec)


def _autoscaler(plan: Plan) -> Manifest:
    return {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "name": plan.name}
