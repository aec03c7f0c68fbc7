"""The settings of an autoscaler: a HorizontalPodAutoscaler as the controller reads it, or the one that KEDA makes of a
ScaledObject."""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

from marina.config.errors import InputError
from marina.config.quantity import quantity
from marina.k8s.monitoring import EXPECTED, EXPECTED_METRIC

Manifest = dict[str, Any]
Select = Literal["Disabled", "Max", "Min"]
_TOLERANCE = "0.1"


@dataclass(frozen=True)
class Metric:
    """One of the metrics. The controller follows the one that proposes the most pods."""

    kind: Literal["External", "Pods", "Resource"]
    name: str
    target: float
    """Per pod, in the metric's own unit; for a resource in percent of the request."""

    @property
    def is_forecast(self) -> bool:
        """Whether it is the forecast from past weeks."""
        return self.name == EXPECTED_METRIC or f"model:{EXPECTED}{{" in self.name


@dataclass(frozen=True)
class Policy:
    """How far the number of pods may change within a period."""

    kind: Literal["Percent", "Pods"]
    value: int
    period_s: int


@dataclass(frozen=True)
class ScalingRules:
    """One direction of `behavior`."""

    window_s: int
    select: Select
    policies: tuple[Policy, ...]
    tolerance: float


@dataclass(frozen=True)
class Hpa:
    """The settings that decide."""

    low: int
    high: int
    metrics: tuple[Metric, ...]
    up: ScalingRules
    down: ScalingRules

    @property
    def forecasts(self) -> bool:
        """Whether one of its metrics is the forecast."""
        return any(metric.is_forecast for metric in self.metrics)

    def with_up_window(self, seconds: int) -> "Hpa":
        """A copy with another stabilization window for scaling up."""
        return replace(self, up=replace(self.up, window_s=seconds))


# The API server's defaults.
_UP = {
    "stabilizationWindowSeconds": 0,
    "selectPolicy": "Max",
    "policies": [
        {"type": "Pods", "value": 4, "periodSeconds": 15},
        {"type": "Percent", "value": 100, "periodSeconds": 15},
    ],
}
_DOWN = {
    "stabilizationWindowSeconds": 300,
    "selectPolicy": "Max",
    "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}],
}


def read_hpa(manifest: Manifest, where: str = "the autoscaler", hint: str = "") -> Hpa:
    """Reads a HorizontalPodAutoscaler (`autoscaling/v2`) or a ScaledObject. Raises InputError, which begins with
    `where`, if it has another form or metrics of another kind."""
    try:
        spec = manifest["spec"]
        if manifest["kind"] == "ScaledObject":
            return _of_keda(spec)
        metrics = tuple(_metric(metric) for metric in spec["metrics"])
        return _hpa(spec.get("minReplicas", 1), spec["maxReplicas"], metrics, spec["behavior"])
    except (AttributeError, KeyError, TypeError, ValueError) as err:
        allowed = "allowed: a `behavior`, pod metrics, external ones with an `averageValue`, and resources in percent"
        raise InputError(f"{where}: cannot be replayed, {allowed}", hint=hint) from err


def _of_keda(spec: Manifest) -> Hpa:
    """KEDA turns its Prometheus triggers into external metrics, and copies the behavior."""
    behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    metrics = tuple(_trigger(trigger) for trigger in spec["triggers"])
    return _hpa(spec.get("minReplicaCount", 1), spec["maxReplicaCount"], metrics, behavior)


def _hpa(low: int, high: int, metrics: tuple[Metric, ...], behavior: Manifest) -> Hpa:
    up, down = (behavior.get(direction) or {} for direction in ("scaleUp", "scaleDown"))
    return Hpa(int(low), int(high), metrics, _rules(_UP | up), _rules(_DOWN | down))


def _metric(given: Manifest) -> Metric:
    if given["type"] == "Pods":
        pods = given["pods"]
        return Metric("Pods", pods["metric"]["name"], _positive(quantity(pods["target"]["averageValue"])))
    if given["type"] == "External":
        external = given["external"]
        return Metric("External", external["metric"]["name"], _positive(quantity(external["target"]["averageValue"])))
    resource = given["resource" if given["type"] == "Resource" else "containerResource"]
    return Metric("Resource", resource["name"], _positive(resource["target"]["averageUtilization"]))


def _trigger(trigger: Manifest) -> Metric:
    if trigger["type"] == "cpu":
        return Metric("Resource", "cpu", _positive(trigger["metadata"]["value"]))
    return Metric("External", trigger["metadata"]["query"], _positive(trigger["metadata"]["threshold"]))


def _positive(value: Any) -> float:
    if not 0 < float(value) < math.inf:
        raise ValueError(value)
    return float(value)


def _rules(given: Manifest) -> ScalingRules:
    policies = tuple(
        Policy(policy["type"], int(policy["value"]), int(policy["periodSeconds"])) for policy in given["policies"]
    )
    if not policies:
        raise ValueError("no policies")
    tolerance = quantity(str(given.get("tolerance", _TOLERANCE)))
    return ScalingRules(int(given["stabilizationWindowSeconds"]), given["selectPolicy"], policies, tolerance)
