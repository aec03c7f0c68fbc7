"""At least one defect for each rule of `marina verify`, put into sound manifests one at a time, and the only rule that
must find it.

A path is the keys that lead to a place, separated by blanks; a number is the index of a list item."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from marina.k8s.manifests import Files

Change = Callable[[Files], None]

D, HPA, PDB, KEDA_SCALER = "Deployment", "HorizontalPodAutoscaler", "PodDisruptionBudget", "ScaledObject"
POD = "spec template spec"
SERVER = f"{POD} containers 0"
KEDA = {"scaling.autoscaler": "keda"}
ROUTE = {"kubernetes.route": {"gateway": "edge/public"}}
EDGE = {
    "kubernetes.route": {"gateway": "edge/public", "auth": {"api_keys": "keys"}},
    "kubernetes.network.clients": ["edge"],
}
SPOT_NODES = {"kubernetes.spot": {"provider": "eks"}}
TRACED = {"tracing": {"endpoint": "http://collector.tools.svc:4318"}}
REDIS = {"serving.cache": {"redis": "redis://cache.tools.svc"}}
BY_SERVICE = {"kubernetes.monitoring": {"monitor": "service"}}
FIXED = {"scaling.autoscaler": "none", "scaling.min_replicas": 2}


@dataclass(frozen=True)
class Seed:
    """One defect; `base` has changes of the spec from which the sound manifests are rendered."""

    rule: str
    changes: tuple[Change, ...]
    base: dict[str, Any] = field(default_factory=dict)

    def sown(self, files: Files) -> Files:
        """A copy of sound objects with the defect in them."""
        copy = deepcopy(files)
        for change in self.changes:
            change(copy)
        return copy


def seed(rule: str, *changes: Change, base: dict[str, Any] | None = None) -> Seed:
    return Seed(rule, changes, base or {})


def put(kind: str, path: str, value: Any) -> Change:
    """Writes a value, and the mappings on the way to it."""

    def change(files: Files) -> None:
        place, last = _reach(files, kind, path)
        if isinstance(place, list) and last == len(place):
            place.append(value)
        else:
            place[last] = value

    return change


def drop(kind: str, path: str) -> Change:
    """Deletes a value."""

    def change(files: Files) -> None:
        place, last = _reach(files, kind, path)
        del place[last]

    return change


def gone(kind: str) -> Change:
    """Removes every object of a kind."""

    def change(files: Files) -> None:
        for name in files:
            files[name] = [document for document in files[name] if document["kind"] != kind]

    return change


def _reach(files: Files, kind: str, path: str) -> tuple[Any, Any]:
    documents = [document for some in files.values() for document in some]
    place: Any = next(document for document in documents if document["kind"] == kind)
    *keys, last = [int(key) if key.isdigit() else key for key in path.split()]
    for key in keys:
        place = place[key] if isinstance(key, int) else place.setdefault(key, {})
    return place, last


_PROBE = {"httpGet": {"path": "/ready", "port": "supervisor"}, "failureThreshold": 1, "periodSeconds": 5}
_FROM_SHOP = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "shop"}}}
_EXPR = "spec groups 0 rules 0 expr"

MADE_FROM = [
    seed("schema", put(D, "spec replica", 2)),
    seed("schema", put(D, f"{POD} terminationGracePeriodSeconds", "60")),
    seed("schema", put("Service", "spec ports 0 port", None)),
    seed("schema", put("PodMonitor", "spec podMetricsEndpoints 0 intervall", "15s")),
    seed("schema", put("PodMonitor", "spec podMetricsEndpoints 0 interval", "15 s")),
    seed("schema", put("PodMonitor", "spec podMetricsEndpoints", [])),
    seed("schema", put("PrometheusRule", "spec groups 0 rules 0 for", "5m")),
    seed("schema", put(KEDA_SCALER, "spec triggers 0 metadata threshold", 5), base=KEDA),
    seed("schema", put("HTTPRoute", "spec rules 0 timeouts request", "60"), base=ROUTE),
    seed("schema", put(HPA, "apiVersion", "autoscaling/v2beta2")),
    seed("schema", put(PDB, "apiVersion", "policy/v1beta1")),
    seed("origin-differs", put(D, "spec template metadata annotations marina/package", "0" * 64)),
    seed("origin-differs", put(D, "metadata annotations marina/evidence", "0" * 64)),
    seed("origin-differs", drop(HPA, "metadata annotations")),
    seed("origin-differs", put(D, "spec template metadata annotations marina/config", "0" * 64)),
    seed("image-digest", put(D, f"{SERVER} image", "registry.local:5000/digits:1.0")),
    seed("image-digest", put(D, f"{SERVER} image", "registry.local:5000/digits@sha256:" + "a" * 63)),
]

SPOT = [
    seed("spot-drain-fits", put(D, f"{POD} terminationGracePeriodSeconds", 130), base=SPOT_NODES),
]

PODS = [
    seed("liveness-of-model", put(D, f"{SERVER} livenessProbe httpGet path", "/ready")),
    seed("liveness-of-model", put(D, f"{SERVER} livenessProbe httpGet", {"path": "/predictions/digits", "port": 8080})),
    seed("liveness-of-model", drop(D, f"{SERVER} livenessProbe httpGet"),
         put(D, f"{SERVER} livenessProbe exec command",
             ["sh", "-c", "curl -sf -T cat.jpg http://localhost:8080/predictions/digits || exit 1"])),
    seed("readiness-ping", put(D, f"{SERVER} readinessProbe httpGet path", "/live")),
    seed("readiness-ping", put(D, f"{SERVER} startupProbe httpGet", {"path": "/ping", "port": "inference"})),
    seed("readiness-ping", drop(D, f"{SERVER} readinessProbe httpGet"),
         put(D, f"{SERVER} readinessProbe exec command", ["curl", "-f", "localhost:8080/ping"])),
    seed("startup-budget", put(D, f"{SERVER} startupProbe failureThreshold", 2)),
    seed("startup-budget", drop(D, f"{SERVER} startupProbe"),
         put(D, f"{SERVER} livenessProbe", _PROBE | {"httpGet": {"path": "/live", "port": "supervisor"}})),
    seed("startup-budget", put(D, "spec progressDeadlineSeconds", 120)),
    seed("startup-budget", drop(D, "spec progressDeadlineSeconds"),
         put(D, f"{SERVER} startupProbe failureThreshold", 400)),
    seed("grace-period", put(D, f"{POD} terminationGracePeriodSeconds", 30)),
    seed("grace-period", drop(D, f"{POD} terminationGracePeriodSeconds")),
    seed("grace-period", put(D, f"{SERVER} lifecycle preStop sleep seconds", 90)),
    seed("grace-period", put(D, f"{SERVER} lifecycle preStop", {"exec": {"command": ["/bin/wait", "sleep 60"]}})),
    seed("memory-peak", put(D, f"{SERVER} resources limits memory", "512Mi")),
    seed("memory-peak", put(D, f"{SERVER} resources requests memory", "512Mi")),
    seed("nowhere-to-write", put(D, f"{SERVER} volumeMounts 1 mountPath", "/scratch")),
    seed("nowhere-to-write", put(D, f"{SERVER} volumeMounts 1 readOnly", True)),
]  # fmt: skip

BETWEEN = [
    seed("selects-nothing", put("PodMonitor", "spec selector matchLabels a", "b")),
    seed("selects-nothing", put("ServiceMonitor", "spec selector matchLabels a", "b"), base=BY_SERVICE),
    seed("selects-nothing", put(PDB, "spec selector matchLabels a", "b")),
    seed("selects-nothing", drop(PDB, "spec selector")),
    seed("selects-nothing", put("NetworkPolicy", "spec podSelector matchLabels a", "b")),
    seed("selects-nothing", put(D, f"{POD} topologySpreadConstraints 0 labelSelector matchLabels a", "b")),
    seed("selects-nothing", drop(D, f"{POD} topologySpreadConstraints 0 labelSelector")),
    seed("port-unknown", put("Service", "spec ports 0 targetPort", "inferense")),
    seed("port-unknown", put("Service", "spec ports 0 targetPort", 8888), base={"kubernetes.network.policy": False}),
    seed("port-unknown", put("PodMonitor", "spec podMetricsEndpoints 0 port", "metrics")),
    seed("port-unknown", put("ServiceMonitor", "spec endpoints 0 port", "http"), base=BY_SERVICE),
    seed("port-unknown", put(D, f"{SERVER} readinessProbe httpGet port", "pages")),
    seed("port-unknown", put(D, "spec template metadata annotations prometheus.io/port", "8082"),
         base={"kubernetes.monitoring": {"monitor": "annotations"}}),
    seed("route-backend", put("HTTPRoute", "spec rules 0 backendRefs 0 name", "digit"), base=ROUTE),
    seed("route-backend", put("HTTPRoute", "spec rules 0 backendRefs 0 port", 80), base=ROUTE),
    seed("policy-target", put("SecurityPolicy", "spec targetRefs 0 name", "digit"), base=EDGE),
    seed("policy-target", put("BackendTrafficPolicy", "spec targetRefs", []), base=EDGE),
    seed("gateway-bypassed", put("NetworkPolicy", "spec ingress 0 from 1", _FROM_SHOP), base=EDGE),
    seed("gateway-bypassed", put("NetworkPolicy", "spec ingress 0 from", []), base=EDGE),
    seed("gateway-bypassed", gone("NetworkPolicy"), base=EDGE),
    seed("schema", put("BackendTrafficPolicy", "spec retry retryOn triggers 0", "never"), base=EDGE),
    seed("schema", put("SecurityPolicy", "spec apiKeyAuth credentialRef", []), base=EDGE),
    seed("policy-blocks-port", put("NetworkPolicy", "spec ingress 0 ports 0 port", 8888)),
    seed("policy-blocks-port", drop("NetworkPolicy", "spec ingress 1")),
    seed("policy-blocks-port", drop("NetworkPolicy", "spec egress 0"), base=REDIS),
    seed("policy-blocks-port", put("NetworkPolicy", "spec egress 0 ports 0 port", 6380), base=REDIS),
    seed("policy-blocks-port", drop("NetworkPolicy", "spec egress 0"), base=TRACED),
    seed("pdb-blocks-drain", put(PDB, "spec maxUnavailable", 0), base=FIXED),
    seed("pdb-blocks-drain", drop(PDB, "spec maxUnavailable"), put(PDB, "spec minAvailable", "60%"), base=FIXED),
    seed("pdb-blocks-drain", drop(PDB, "spec maxUnavailable"), put(PDB, "spec minAvailable", 2)),
    seed("pdb-blocks-drain", put(PDB, "spec maxUnavailable", "0%"), base=KEDA),
    seed("replicas-owned", put(D, "spec replicas", 2)),
    seed("replicas-owned", put(D, "spec replicas", 2), base=KEDA),
    seed("scaler-target", put(HPA, "spec scaleTargetRef name", "digit")),
    seed("scaler-target", put(HPA, "spec scaleTargetRef apiVersion", "extensions/v1beta1")),
    seed("scaler-target", drop(HPA, "spec scaleTargetRef apiVersion")),
    seed("scaler-target", put(KEDA_SCALER, "spec scaleTargetRef kind", "StatefulSet"), base=KEDA),
    seed("scaler-target", put(HPA, "spec metrics 1 containerResource container", "serving")),
    seed("scaler-target", put(KEDA_SCALER, "spec triggers 1 metadata containerName", "serving"), base=KEDA),
    seed("scaler-bounds", put(KEDA_SCALER, "spec minReplicaCount", 0), base=KEDA),
    seed("scaler-bounds", put(HPA, "spec minReplicas", 0)),
    seed("scaler-bounds", put(HPA, "spec behavior scaleDown stabilizationWindowSeconds", 30)),
    seed("scaler-bounds", put(KEDA_SCALER, "spec advanced horizontalPodAutoscalerConfig behavior scaleDown "
                              "stabilizationWindowSeconds", 5), base=KEDA),
    seed("metric-misused", put("PrometheusRule", _EXPR, "sum(")),
    seed("metric-misused", put("PrometheusRule", _EXPR, "marina_raedy")),
    seed("metric-misused", put("PrometheusRule", _EXPR, "ts_inference_requests_total")),
    seed("metric-misused", put("PrometheusRule", _EXPR, 'marina_ready{colour="red"}')),
    seed("metric-misused", put(KEDA_SCALER, "spec triggers 0 metadata query", "sum by pod (up)"), base=KEDA),
    seed("metric-misused", put(KEDA_SCALER, "spec triggers 0 metadata query", "sum(ts_inference_requests_total)"),
         base=KEDA),
    seed("metric-adapter", put(HPA, "spec metrics 0 pods metric name", "inference_request_per_second")),
    seed("metric-adapter", put(HPA, "spec metrics 0 pods metric name", "ts_inference_requests_total")),
]  # fmt: skip

SEEDS = [*MADE_FROM, *SPOT, *PODS, *BETWEEN]
