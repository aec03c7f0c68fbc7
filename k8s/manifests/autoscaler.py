"""How many pods run: the autoscaler, for the HPA and KEDA, and the disruption budget."""

from typing import Any

from kubernetes import client

from config.quantity import canonical
from k8s.manifests.labels import EVIDENCE_ANNOTATION, metadata, selector_labels
from k8s.manifests.plan import SCALE_DOWN_PERCENT, SCALE_UP_PERCENT, SCALE_UP_PODS, SCALE_UP_WINDOW_S, Plan
from k8s.manifests.yaml_text import custom_resource
from k8s.monitoring import (
    EXPECTED_METRIC,
    METRICS,
    RUNNING_METRIC,
    SERVER_CONTAINER,
    expected_query,
    keda_query,
    running_query,
)


def disruption_budget(plan: Plan) -> client.V1PodDisruptionBudget:
    """Lets one pod at a time be evicted. A pod that is not ready never blocks the drain of a node."""
    return client.V1PodDisruptionBudget(
        api_version="policy/v1",
        kind="PodDisruptionBudget",
        metadata=metadata(plan),
        spec=client.V1PodDisruptionBudgetSpec(
            selector=client.V1LabelSelector(match_labels=selector_labels(plan)),
            max_unavailable=1,
            unhealthy_pod_eviction_policy="AlwaysAllow",
        ),
    )


def autoscaler(plan: Plan) -> client.V2HorizontalPodAutoscaler:
    """The HorizontalPodAutoscaler, with the metric of the pods and their cpu; whichever asks for more pods wins."""
    scaling = plan.spec.scaling
    return client.V2HorizontalPodAutoscaler(
        api_version="autoscaling/v2",
        kind="HorizontalPodAutoscaler",
        metadata=metadata(plan, annotations=_annotations(plan)),
        spec=client.V2HorizontalPodAutoscalerSpec(
            scale_target_ref=client.V2CrossVersionObjectReference(
                api_version="apps/v1", kind="Deployment", name=plan.name
            ),
            min_replicas=scaling.min_replicas,
            max_replicas=scaling.max_replicas,
            metrics=[*_pod_metrics(plan), *_cpu(plan)],
            behavior=_behavior(plan),
        ),
    )


def scaled_object(plan: Plan) -> dict[str, Any]:
    """The same for KEDA, which queries Prometheus itself and makes a HorizontalPodAutoscaler of its own."""
    scaling, triggers = plan.spec.scaling, _triggers(plan)
    # If Prometheus does not answer, the current pods stay. KEDA supports that only for averages.
    fallback = {"failureThreshold": 3, "replicas": scaling.min_replicas, "behavior": "currentReplicasIfHigher"}
    averaged = any((trigger["type"], trigger["metricType"]) == ("prometheus", "AverageValue") for trigger in triggers)
    behavior = _behavior(plan).model_dump(mode="json", by_alias=True, exclude_none=True)
    spec = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": plan.name},
        "pollingInterval": 15,
        "minReplicaCount": scaling.min_replicas,
        "maxReplicaCount": scaling.max_replicas,
        **({"fallback": fallback} if averaged else {}),
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": behavior}},
        "triggers": triggers,
    }
    return custom_resource("keda.sh/v1alpha1", "ScaledObject", metadata(plan, annotations=_annotations(plan)), spec)


def _triggers(plan: Plan) -> list[dict[str, Any]]:
    """The triggers of the ScaledObject: queries for Prometheus, and the cpu."""
    scaling, triggers = plan.spec.scaling, list[dict[str, Any]]()
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


def _pod_metrics(plan: Plan) -> list[client.V2MetricSpec]:
    scaling = plan.spec.scaling
    if (target := plan.scaling_target) is None:
        return []
    targets = {METRICS[scaling.metric]: target}
    if scaling.metric == "waiting":
        targets[RUNNING_METRIC] = plan.target_running
    sources = [
        client.V2PodsMetricSource(metric=client.V2MetricIdentifier(name=name), target=_average(value))
        for name, value in targets.items()
    ]
    metrics = [client.V2MetricSpec(type="Pods", pods=source) for source in sources]
    if scaling.forecast == "weekly":
        selector = client.V1LabelSelector(match_labels={"model": plan.name})
        expected = client.V2MetricIdentifier(name=EXPECTED_METRIC, selector=selector)
        external = client.V2ExternalMetricSource(metric=expected, target=_average(target))
        metrics.append(client.V2MetricSpec(type="External", external=external))
    return metrics


def _average(target: float) -> client.V2MetricTarget:
    return client.V2MetricTarget(type="AverageValue", average_value=canonical(f"{round(target * 1000)}m"))


def _cpu(plan: Plan) -> list[client.V2MetricSpec]:
    """The cpu of the server's container. In a metric of the whole pod, a sidecar's idle cores would hide a busy server,
    and an injected sidecar without a cpu request would leave the metric without a value."""
    if plan.cpu_percent is None:
        return []
    utilization = client.V2MetricTarget(type="Utilization", average_utilization=plan.cpu_percent)
    source = client.V2ContainerResourceMetricSource(name="cpu", container=SERVER_CONTAINER, target=utilization)
    return [client.V2MetricSpec(type="ContainerResource", container_resource=source)]


def _behavior(plan: Plan) -> client.V2HorizontalPodAutoscalerBehavior:
    return client.V2HorizontalPodAutoscalerBehavior(
        scale_up=_rules(
            SCALE_UP_WINDOW_S, Percent=SCALE_UP_PERCENT, Pods=SCALE_UP_PODS, period_s=plan.scale_up_period_s
        ),
        scale_down=_rules(plan.scale_down_window_s, Percent=SCALE_DOWN_PERCENT, period_s=plan.scale_down_period_s),
    )


def _rules(window_s: int, *, period_s: int, **steps: int) -> client.V2HPAScalingRules:
    """Scaling rules that allow the largest of the steps, which are in percent (`Percent`) or pods (`Pods`)."""
    policies = [
        client.V2HPAScalingPolicy(type=kind, value=value, period_seconds=period_s) for kind, value in steps.items()
    ]
    return client.V2HPAScalingRules(stabilization_window_seconds=window_s, select_policy="Max", policies=policies)


def _annotations(plan: Plan) -> dict[str, Any] | None:
    return {EVIDENCE_ANNOTATION: plan.evidence.sha256} if plan.evidence else None
