"""Custom resources, which the `kubernetes` client knows nothing about: one small type each, of which nothing can be
misspelt. What is written is checked against the schemas that come with the kit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from kubernetes.client import V1ObjectMeta

from k8s.manifests.yaml_text import plain


@dataclass(frozen=True)
class CustomResource(ABC):
    """An object of a kind that a cluster may not have."""

    metadata: V1ObjectMeta

    @abstractmethod
    def kind(self) -> tuple[str, str]:
        """Its API version and kind."""

    @abstractmethod
    def spec(self) -> dict[str, Any]:
        """Its `spec`."""

    def to_data(self) -> dict[str, Any]:
        """As plain data."""
        version, kind = self.kind()
        return {"apiVersion": version, "kind": kind, "metadata": plain(self.metadata)[0], "spec": self.spec()}


@dataclass(frozen=True)
class Monitor(CustomResource):
    """A PodMonitor, or the ServiceMonitor of a Service: what the Prometheus operator scrapes."""

    selector: dict[str, str]
    port: str
    interval_s: int
    by_service: bool

    def kind(self) -> tuple[str, str]:
        return "monitoring.coreos.com/v1", "ServiceMonitor" if self.by_service else "PodMonitor"

    def spec(self) -> dict[str, Any]:
        # A reading that takes longer than half the time between two of them is a lost one.
        times = {"interval": f"{self.interval_s}s", "scrapeTimeout": f"{max(1, self.interval_s // 2)}s"}
        endpoint = {"port": self.port, "path": "/metrics", "scheme": "http", **times}
        # The page's own labels stay what they are; none of them is one that Prometheus adds.
        return {
            "selector": {"matchLabels": self.selector},
            "endpoints" if self.by_service else "podMetricsEndpoints": [endpoint | {"honorLabels": False}],
        }


@dataclass(frozen=True)
class PrometheusRule(CustomResource):
    """Recording and alerting rules for the Prometheus operator."""

    groups: list[dict[str, Any]]

    def kind(self) -> tuple[str, str]:
        return "monitoring.coreos.com/v1", "PrometheusRule"

    def spec(self) -> dict[str, Any]:
        return {"groups": self.groups}


@dataclass(frozen=True)
class Trigger:
    """What a ScaledObject looks at: a query of Prometheus, or the cpu."""

    kind: str
    metric_type: str
    settings: dict[str, str]

    def to_data(self) -> dict[str, Any]:
        """As plain data."""
        return {"type": self.kind, "metricType": self.metric_type, "metadata": self.settings}


@dataclass(frozen=True)
class ScaledObject(CustomResource):
    """KEDA's autoscaler of a Deployment; it makes a HorizontalPodAutoscaler of its own."""

    deployment: str
    replicas: tuple[int, int]
    behavior: dict[str, Any]
    triggers: list[Trigger]

    def kind(self) -> tuple[str, str]:
        return "keda.sh/v1alpha1", "ScaledObject"

    def spec(self) -> dict[str, Any]:
        low, high = self.replicas
        # Without an answer from Prometheus, what is there stays; KEDA can do that for averages only.
        averaged = any(
            (trigger.kind, trigger.metric_type) == ("prometheus", "AverageValue") for trigger in self.triggers
        )
        fallback = {"failureThreshold": 3, "replicas": low, "behavior": "currentReplicasIfHigher"}
        return {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": self.deployment},
            "pollingInterval": 15,
            "minReplicaCount": low,
            "maxReplicaCount": high,
            **({"fallback": fallback} if averaged else {}),
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": self.behavior}},
            "triggers": [trigger.to_data() for trigger in self.triggers],
        }


@dataclass(frozen=True)
class HttpRoute(CustomResource):
    """The way from a Gateway to a Service."""

    gateway: str
    gateway_namespace: str
    hostnames: tuple[str, ...]
    path: str
    service: str
    port: int
    timeout_s: int

    def kind(self) -> tuple[str, str]:
        return "gateway.networking.k8s.io/v1", "HTTPRoute"

    def spec(self) -> dict[str, Any]:
        rule = {
            "matches": [{"path": {"type": "PathPrefix", "value": self.path}}],
            "timeouts": {"request": f"{self.timeout_s}s"},
            "backendRefs": [{"name": self.service, "port": self.port, "weight": 1}],
        }
        return {
            "parentRefs": [{"name": self.gateway, "namespace": self.gateway_namespace}],
            **({"hostnames": list(self.hostnames)} if self.hostnames else {}),
            "rules": [rule],
        }
