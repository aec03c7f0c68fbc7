"""What the autoscaler of a Deployment measures and wants, and what it cannot do right now. KEDA's autoscalers are
HorizontalPodAutoscalers, too."""

from dataclasses import dataclass

from marina.config.quantity import quantity
from marina.k8s.cluster import ApiError, Cluster, Document, Ref


@dataclass(frozen=True)
class AutoscalerStatus:
    """One autoscaler at one moment."""

    text: str
    """Its pods and metrics."""
    blocked: str = ""
    """What it cannot do, and why; empty if it works."""


def read_autoscaler(cluster: Cluster, deployment: Ref) -> AutoscalerStatus | None:
    """The status of a Deployment's autoscaler; None if it has none. Who may deploy need not be allowed to list them."""
    try:
        autoscalers = cluster.list("autoscaling/v2", "HorizontalPodAutoscaler", deployment.namespace)["items"]
    except ApiError as err:
        if err.status != 403:
            raise
        return AutoscalerStatus(f"unknown: {err.message}")
    for document in autoscalers:
        if document["spec"]["scaleTargetRef"]["name"] == deployment.name:
            return autoscaler_status(document)
    return None


def autoscaler_status(autoscaler: Document) -> AutoscalerStatus:
    spec, status = autoscaler["spec"], autoscaler.get("status") or {}
    present, wanted = status.get("currentReplicas"), status.get("desiredReplicas")
    text = f"{spec.get('minReplicas', 1)} to {spec['maxReplicas']} pods, now {present or 0}, "
    # Although there are pods, `desiredReplicas` is 0 until the autoscaler has metrics for its first decision.
    text += "has not decided yet" if wanted is None or (present and not wanted) else f"wants {wanted}"
    metrics = spec.get("metrics") or []
    now = {_metric(metric): _value(metric, "current") for metric in status.get("currentMetrics") or []}
    for metric in metrics:
        text += f"; {_metric(metric)} {now.get(_metric(metric)) or 'unknown'} of {_value(metric, 'target')}"
    unknown = [_metric(metric) for metric in metrics if not now.get(_metric(metric))]
    return AutoscalerStatus(text, _blocked(status, unknown, known=len(metrics) - len(unknown)))


def _blocked(status: Document, unknown: list[str], *, known: int) -> str:
    for condition in status.get("conditions") or []:
        if condition.get("status") != "False":
            continue
        why = str(condition.get("message") or condition.get("reason"))
        if condition.get("type") == "AbleToScale":
            return f"it cannot change the number of pods: {why}"
        if condition.get("type") == "ScalingActive":
            # While one metric is unknown, the autoscaler still adds pods by the others, but never removes any.
            # https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/#algorithm-details
            if known and unknown:
                return f"it can add pods but removes none while `{'`, `'.join(unknown)}` is unknown: {why}"
            return f"it neither adds nor removes pods: {why}"
    return ""


def _metric(metric: Document) -> str:
    details: Document = next((value for key, value in metric.items() if key != "type"), {})
    return str((details.get("metric") or {}).get("name") or details.get("name") or metric.get("type"))


def _value(metric: Document, which: str) -> str:
    details: Document = next((value for key, value in metric.items() if key != "type"), {})
    amounts = details.get(which) or {}
    if amounts.get("averageUtilization") is not None:
        return f"{amounts['averageUtilization']} %"
    text = str(amounts.get("averageValue") or amounts.get("value") or "")
    if not text.endswith("m"):
        return text
    number = quantity(text)  # the API writes 8.877 as `8877m`
    return f"{number:.3g}" if number < 100 else f"{number:.0f}"
