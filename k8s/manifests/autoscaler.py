"""How many pods run: the autoscaler, for the HPA and KEDA, and the disruption budget."""

from marina.config.quantity import canonical
from marina.k8s.manifests.labels import EVIDENCE_ANNOTATION, metadata, pods_selector
from marina.k8s.manifests.plan import SCALE_DOWN_PERCENT, SCALE_UP_PERCENT, SCALE_UP_PODS, SCALE_UP_WINDOW_S, Plan
from marina.k8s.manifests.yaml_text import Manifest, resource
from marina.k8s.monitoring import (
    EXPECTED_METRIC,
    METRICS,
    RUNNING_METRIC,
    SERVER_CONTAINER,
    expected_query,
    keda_query,
    running_query,
)


def disruption_budget(plan: Plan) -> Manifest:
    """Lets one pod at a time be evicted. A pod that is not ready never blocks the drain of a node."""
    spec = {
        "maxUnavailable": 1,
        "selector": {"matchLabels": pods_selector(plan)},
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }
    return resource("policy/v1", "PodDisruptionBudget", metadata(plan), spec=spec)


def autoscaler(plan: Plan) -> Manifest:
    """The HorizontalPodAutoscaler, with the metric of the pods and their cpu; whichever asks for more pods wins."""
    spec = {
        "behavior": _behavior(plan),
        "maxReplicas": plan.spec.scaling.max_replicas,
        "metrics": [*_pod_metrics(plan), *_cpu(plan)],
        "minReplicas": plan.spec.scaling.min_replicas,
        "scaleTargetRef": _target(plan),
    }
    annotated = metadata(plan, annotations=_annotations(plan))
    return resource("autoscaling/v2", "HorizontalPodAutoscaler", annotated, spec=spec)


def scaled_object(plan: Plan) -> Manifest:
    """The same for KEDA, which queries Prometheus itself and makes a HorizontalPodAutoscaler of its own."""
    scaling, triggers = plan.spec.scaling, _triggers(plan)
    # If Prometheus does not answer, the current pods stay. KEDA supports that only for averages.
    fallback = {"failureThreshold": 3, "replicas": scaling.min_replicas, "behavior": "currentReplicasIfHigher"}
    averaged = any((trigger["type"], trigger["metricType"]) == ("prometheus", "AverageValue") for trigger in triggers)
    spec = {
        "scaleTargetRef": _target(plan),
        "pollingInterval": 15,
        "minReplicaCount": scaling.min_replicas,
        "maxReplicaCount": scaling.max_replicas,
        **({"fallback": fallback} if averaged else {}),
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _behavior(plan)}},
        "triggers": triggers,
    }
    return resource("keda.sh/v1alpha1", "ScaledObject", metadata(plan, annotations=_annotations(plan)), spec=spec)


def _target(plan: Plan) -> Manifest:
    return {"apiVersion": plan.workload.api_version, "kind": plan.workload.kind, "name": plan.name}


def _triggers(plan: Plan) -> list[Manifest]:
    """The triggers of the ScaledObject: queries for Prometheus, and the cpu."""
    scaling, triggers = plan.spec.scaling, list[Manifest]()
    if (target := plan.scaling_target) is not None:
        queries = {keda_query(plan.spec): target}
        if scaling.forecast == "weekly":
            queries[expected_query(plan.spec)] = target
        if scaling.metric == "waiting":
            queries[running_query(plan.spec)] = plan.target_running
        kind = "Value" if scaling.metric == "queue_time" else "AverageValue"
        for query, threshold in queries.items():
            settings = {"serverAddress": scaling.prometheus, "query": query, "threshold": f"{threshold:g}"}
            triggers.append({"type": "prometheus", "metricType": kind, "metadata": settings})
    if plan.cpu_percent is not None:
        settings = {"value": str(plan.cpu_percent), "containerName": SERVER_CONTAINER}
        triggers.append({"type": "cpu", "metricType": "Utilization", "metadata": settings})
    return triggers


def _pod_metrics(plan: Plan) -> list[Manifest]:
    scaling = plan.spec.scaling
    if (target := plan.scaling_target) is None:
        return []
    targets = {METRICS[scaling.metric]: target}
    if scaling.metric == "waiting":
        targets[RUNNING_METRIC] = plan.target_running
    metrics: list[Manifest] = [
        {"type": "Pods", "pods": {"metric": {"name": name}, "target": _average(value)}}
        for name, value in targets.items()
    ]
    if scaling.forecast == "weekly":
        expected = {"name": EXPECTED_METRIC, "selector": {"matchLabels": {"model": plan.name}}}
        metrics.append({"type": "External", "external": {"metric": expected, "target": _average(target)}})
    return metrics


def _average(target: float) -> dict[str, str]:
    return {"type": "AverageValue", "averageValue": canonical(f"{round(target * 1000)}m")}


def _cpu(plan: Plan) -> list[Manifest]:
    """The cpu of the server's container. In a metric of the whole pod, a sidecar's idle cores would hide a busy server,
    and an injected sidecar without a cpu request would leave the metric without a value."""
    if plan.cpu_percent is None:
        return []
    target = {"type": "Utilization", "averageUtilization": plan.cpu_percent}
    source = {"name": "cpu", "container": SERVER_CONTAINER, "target": target}
    return [{"type": "ContainerResource", "containerResource": source}]


def _behavior(plan: Plan) -> dict[str, Manifest]:
    grow = {"Percent": SCALE_UP_PERCENT, "Pods": SCALE_UP_PODS}
    return {
        "scaleDown": _rules(plan.scale_down_window_s, plan.scale_down_period_s, {"Percent": SCALE_DOWN_PERCENT}),
        "scaleUp": _rules(SCALE_UP_WINDOW_S, plan.scale_up_period_s, grow),
    }


def _rules(window_s: int, period_s: int, steps: dict[str, int]) -> Manifest:
    """Scaling rules that allow the largest of the steps, which are in percent (`Percent`) or pods (`Pods`)."""
    policies = [{"periodSeconds": period_s, "type": kind, "value": value} for kind, value in steps.items()]
    return {"policies": policies, "selectPolicy": "Max", "stabilizationWindowSeconds": window_s}


def _annotations(plan: Plan) -> dict[str, str] | None:
    return {EVIDENCE_ANNOTATION: plan.evidence.sha256} if plan.evidence else None
