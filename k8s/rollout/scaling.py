"""What the autoscaler of a Deployment sees and wants, and what it cannot do now. Of KEDA it is one of these as well."""

from __future__ import annotations

from dataclasses import dataclass

from k8s.cluster import Cluster, Document, Ref


@dataclass(frozen=True)
class Scaling:
    """One autoscaler at one moment."""

    text: str
    blocked: str = ""
    """What it cannot do, and why; empty while it can do all."""


def read_scaling(cluster: Cluster, deployment: Ref) -> Scaling | None:
    """The autoscaler of a Deployment; None where there is none."""
    for document in cluster.list("autoscaling/v2", "HorizontalPodAutoscaler", deployment.namespace)["items"]:
        if document["spec"]["scaleTargetRef"]["name"] == deployment.name:
            return scaling_of(document)
    return None


def scaling_of(autoscaler: Document) -> Scaling:
    """What a HorizontalPodAutoscaler says of itself, in words."""
    spec, status = autoscaler["spec"], autoscaler.get("status") or {}
    text = f"{status.get('currentReplicas', 0)} of {spec.get('minReplicas', 1)} to {spec['maxReplicas']} pods, "
    present, wanted = status.get("currentReplicas"), status.get("desiredReplicas")
    # Beside pods that are there, it says 0 until its metrics suffice for the first time.
    text += "has not decided yet" if wanted is None or (present and not wanted) else f"wants {wanted}"
    metrics = spec.get("metrics") or []
    now = {_metric(metric): _value(metric, "current") for metric in status.get("currentMetrics") or []}
    for metric in metrics:
        text += f"; {_metric(metric)} {now.get(_metric(metric)) or 'unknown'} of {_value(metric, 'target')}"
    unknown = [_metric(metric) for metric in metrics if not now.get(_metric(metric))]
    return Scaling(text, _blocked(status, unknown, known=len(metrics) - len(unknown)))


def _blocked(status: Document, unknown: list[str], *, known: int) -> str:
    for condition in status.get("conditions") or []:
        if condition.get("status") != "False":
            continue
        why = str(condition.get("message") or condition.get("reason"))
        if condition.get("type") == "AbleToScale":
            return f"it cannot change the number of pods: {why}"
        if condition.get("type") == "ScalingActive":
            # With one metric unknown, the autoscaler takes the others' word for more pods, never for fewer.
            # https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/#algorithm-details
            if known and unknown:
                return f"it removes no pod while `{'`, `'.join(unknown)}` is unknown, and adds some by the rest: {why}"
            return f"it neither adds nor removes a pod: {why}"
    return ""


def _metric(metric: Document) -> str:
    details: Document = next((value for key, value in metric.items() if key != "type"), {})
    return str((details.get("metric") or {}).get("name") or details.get("name") or metric.get("type"))


def _value(metric: Document, which: str) -> str:
    details: Document = next((value for key, value in metric.items() if key != "type"), {})
    amounts = details.get(which) or {}
    if amounts.get("averageUtilization") is not None:
        return f"{amounts['averageUtilization']} %"
    return str(amounts.get("averageValue") or amounts.get("value") or "")
