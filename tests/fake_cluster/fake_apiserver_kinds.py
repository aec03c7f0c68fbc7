"""The kinds of the fake API server, and the defaults and canonical forms that a real one gives their objects."""

import re
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from decimal import Decimal
from typing import Any


@dataclass(frozen=True)
class Kind:
    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True
    subresources: tuple[str, ...] = ()

    @property
    def group_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


BUILT_IN = (
    Kind("", "v1", "Namespace", "namespaces", False, ("status",)),
    Kind("", "v1", "Pod", "pods", True, ("eviction", "exec", "log", "portforward", "status")),
    Kind("", "v1", "Service", "services", True, ("status",)),
    Kind("", "v1", "ServiceAccount", "serviceaccounts"),
    Kind("", "v1", "ConfigMap", "configmaps"),
    Kind("", "v1", "Secret", "secrets"),
    Kind("", "v1", "Event", "events"),
    Kind("", "v1", "Node", "nodes", False, ("status",)),
    Kind("", "v1", "ResourceQuota", "resourcequotas", True, ("status",)),
    Kind("", "v1", "LimitRange", "limitranges"),
    Kind("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", True, ("status",)),
    Kind("apps", "v1", "Deployment", "deployments", True, ("scale", "status")),
    Kind("apps", "v1", "ReplicaSet", "replicasets", True, ("scale", "status")),
    Kind("apps", "v1", "StatefulSet", "statefulsets", True, ("scale", "status")),
    Kind("apps", "v1", "DaemonSet", "daemonsets", True, ("status",)),
    Kind("batch", "v1", "Job", "jobs", True, ("status",)),
    Kind("batch", "v1", "CronJob", "cronjobs", True, ("status",)),
    Kind("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", True, ("status",)),
    Kind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", True, ("status",)),
    Kind("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies"),
)
# Kinds that a cluster may have installed; a test chooses them by group.
INSTALLABLE = (
    Kind("monitoring.coreos.com", "v1", "ServiceMonitor", "servicemonitors"),
    Kind("monitoring.coreos.com", "v1", "PodMonitor", "podmonitors"),
    Kind("monitoring.coreos.com", "v1", "PrometheusRule", "prometheusrules"),
    Kind("monitoring.coreos.com", "v1", "Prometheus", "prometheuses", True, ("scale", "status")),
    Kind("argoproj.io", "v1alpha1", "Rollout", "rollouts", True, ("status",)),
    Kind("flagger.app", "v1beta1", "Canary", "canaries", True, ("status",)),
    Kind("keda.sh", "v1alpha1", "ScaledObject", "scaledobjects", True, ("status",)),
    Kind("gateway.networking.k8s.io", "v1", "HTTPRoute", "httproutes", True, ("status",)),
    Kind("gateway.envoyproxy.io", "v1alpha1", "BackendTrafficPolicy", "backendtrafficpolicies", True, ("status",)),
    Kind("gateway.envoyproxy.io", "v1alpha1", "SecurityPolicy", "securitypolicies", True, ("status",)),
)
_QUANTITY = re.compile(r"^([0-9.]+)(m|k|M|G|T|Ki|Mi|Gi|Ti)?$")
_BINARY = ("Ki", "Mi", "Gi", "Ti")


def defaults(document: dict[str, Any]) -> dict[str, Any]:
    """The object as a server stores it: with defaults, and quantities in their canonical form."""
    done = deepcopy(document)
    spec = done.setdefault("spec", {}) if done["kind"] in _DEFAULTS else {}
    if fill := _DEFAULTS.get(done["kind"]):
        fill(spec)
    return done


def _deployment(spec: dict[str, Any]) -> None:
    spec.setdefault("replicas", 1)
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)
    strategy = spec.setdefault("strategy", {})
    strategy.setdefault("type", "RollingUpdate")
    rolling = strategy.setdefault("rollingUpdate", {})
    rolling.setdefault("maxSurge", "25%")
    rolling.setdefault("maxUnavailable", "25%")
    _pod_spec(spec["template"]["spec"])
    spec["template"].setdefault("metadata", {})


def _pod_spec(spec: dict[str, Any]) -> None:
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("securityContext", {})
    spec.setdefault("terminationGracePeriodSeconds", 30)
    for container in _containers(spec):
        container.setdefault("imagePullPolicy", "IfNotPresent" if "@" in container["image"] else "Always")
        container.setdefault("terminationMessagePath", "/dev/termination-log")
        container.setdefault("terminationMessagePolicy", "File")
        for port in container.get("ports", []):
            port.setdefault("protocol", "TCP")
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            if probe in container:
                _probe(container[probe])
        resources = container.setdefault("resources", {})
        for amounts in resources.values():
            if isinstance(amounts, dict):
                amounts.update({name: canonical(str(amount)) for name, amount in amounts.items()})
        for name, amount in (resources.get("limits") or {}).items():
            resources.setdefault("requests", {}).setdefault(name, amount)
    for volume in spec.get("volumes", []):
        if "configMap" in volume:
            volume["configMap"].setdefault("defaultMode", 420)
        if "emptyDir" in volume and "sizeLimit" in volume["emptyDir"]:
            volume["emptyDir"]["sizeLimit"] = canonical(str(volume["emptyDir"]["sizeLimit"]))


def _probe(probe: dict[str, Any]) -> None:
    for field, value in (
        ("timeoutSeconds", 1),
        ("periodSeconds", 10),
        ("successThreshold", 1),
        ("failureThreshold", 3),
    ):
        probe.setdefault(field, value)
    if "httpGet" in probe:
        probe["httpGet"].setdefault("scheme", "HTTP")
        probe["httpGet"].setdefault("path", "/")


def _service(spec: dict[str, Any]) -> None:
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    spec.setdefault("clusterIP", "10.96.0.17")
    spec.setdefault("internalTrafficPolicy", "Cluster")
    for port in spec.get("ports", []):
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port["port"])


def _autoscaler(spec: dict[str, Any]) -> None:
    spec.setdefault("minReplicas", 1)
    for metric in spec.get("metrics", []):
        target = next(value["target"] for key, value in metric.items() if key != "type")
        if "averageValue" in target:
            target["averageValue"] = canonical(str(target["averageValue"]))


def _containers(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from spec.get("initContainers", [])
    yield from spec.get("containers", [])


_DEFAULTS = {"Deployment": _deployment, "Service": _service, "HorizontalPodAutoscaler": _autoscaler}


def canonical(text: str) -> str:
    """The canonical form of a quantity: `1000m` is `1`, `2048Mi` is `2Gi`, `0.5` is `500m`."""
    match = _QUANTITY.match(text)
    if not match:
        return text
    number, suffix = Decimal(match[1]), match[2] or ""
    if suffix in _BINARY:
        index = _BINARY.index(suffix)
        while index < len(_BINARY) - 1 and number % 1024 == 0 and number:
            number, index = number / 1024, index + 1
        return f"{number.normalize():f}{_BINARY[index]}"
    milli = number * (1 if suffix == "m" else 1000 * Decimal(1000) ** ("", "k", "M", "G", "T").index(suffix))
    if milli % 1000:
        return f"{milli.normalize():f}m"
    whole, index = milli / 1000, 0
    while index < 4 and whole and whole % 1000 == 0:
        whole, index = whole / 1000, index + 1
    return f"{whole.normalize():f}{('', 'k', 'M', 'G', 'T')[index]}"
