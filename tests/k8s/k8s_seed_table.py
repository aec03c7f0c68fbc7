"""At least one defect for each rule of `marina verify`."""

from k8s_seeds import (
    BY_SERVICE,
    CLAIM,
    FIXED,
    HPA,
    KEDA,
    PDB,
    POD,
    REDIS,
    ROUTE,
    SERVER,
    add,
    bare,
    drop,
    move,
    put,
    seed,
    without,
)

D = "Deployment"
_NODE = {"fieldRef": {"fieldPath": "spec.nodeName"}}
_OPERATOR = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.org}
spec:
  group: example.org
  scope: Namespaced
  names: {kind: Widget, plural: widgets}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, properties: {size: {x-kubernetes-int-or-string: true}, free: {type: object,
                 additionalProperties: {type: string}}, names: {type: array, items: {type: string}}}}
"""
_WIDGET = "apiVersion: example.org/v1\nkind: Widget\nspec: "
_MORE = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: more}\ndata: {a: b}"
_PROJECTED = {"sources": [{"configMap": {"name": "more", "items": [{"key": "b", "path": "b"}]}}]}
_HPA = """
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: digits}
  maxReplicas: 3
  metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 80}}}]
"""

OBJECTS = [
    seed("schema", put(D, "spec replica", 2)),
    seed("schema", put(D, "spec template spec terminationGracePeriodSeconds", "60")),
    seed("schema", put("Service", "spec ports 0 port", None)),
    seed("schema", put("PodMonitor", "spec podMetricsEndpoints 0 intervall", "15s")),
    seed("schema", put("PodMonitor", "spec podMetricsEndpoints 0 interval", "15 s")),
    seed("schema", put("PodMonitor", "spec podMetricsEndpoints", [])),
    seed("schema", put("PrometheusRule", "spec groups 0 rules 0 for", "5m")),
    seed("schema", put("ScaledObject", "spec triggers 0 metadata threshold", 5), base=KEDA),
    seed("schema", put("ScaledObject", "spec maxReplicaCount", 0), put("ScaledObject", "spec minReplicaCount", 0),
         without("Service"), without("NetworkPolicy"), without("PodDisruptionBudget"), base=KEDA),
    seed("schema", put("HTTPRoute", "spec rules 0 timeouts request", "60"), base=ROUTE),
    seed("schema", add(_OPERATOR), add(_WIDGET + "{colour: red}")),
    seed("schema", add(_OPERATOR), add(_WIDGET + "{names: [1]}")),
    seed("api-version", put(HPA, "apiVersion", "autoscaling/v2beta2")),
    seed("api-version", put(PDB, "apiVersion", "policy/v1beta1")),
    seed("api-version", add("apiVersion: apps/v1\nkind: Deploymnt")),
    seed("kind-unknown", add("apiVersion: example.org/v1\nkind: Widget")),
    seed("duplicate-object", add("apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: digits}")),
    seed("namespace-mixed", put("ServiceAccount", "metadata namespace", "other"),
         add("apiVersion: v1\nkind: ServiceAccount\nautomountServiceAccountToken: false\nmetadata: {name: digits}")),
    seed("namespace-mixed", drop(HPA, "metadata namespace")),
]  # fmt: skip

CONNECTED = [
    seed("selector-changes", put("Service", "spec selector app.kubernetes.io/version", "1.0")),
    seed("selector-changes", put(D, "spec selector matchLabels app.kubernetes.io/version", "1.0")),
    seed("service-port", put("Service", "spec ports 0 targetPort", "inferense")),
    seed("service-port", put("Service", "spec ports 0 targetPort", 8888), base={"kubernetes.network.policy": False}),
    seed("route-backend", put("HTTPRoute", "spec rules 0 backendRefs 0 name", "digit"), base=ROUTE),
    seed("route-backend", put("HTTPRoute", "spec rules 0 backendRefs 0 port", 80), base=ROUTE),
    seed(
        "route-backend",
        add(
            "apiVersion: networking.k8s.io/v1\nkind: Ingress\nspec: {defaultBackend: "
            "{service: {name: digits, port: {number: 80}}}}"
        ),
    ),
    seed("spread-selects-nothing", put(D, f"{POD} topologySpreadConstraints 0 labelSelector matchLabels a", "b")),
    seed("spread-selects-nothing", drop(D, f"{POD} topologySpreadConstraints 0 labelSelector")),
    seed("reference-missing", without("ServiceAccount")),
    seed("reference-missing", put(D, f"{SERVER} envFrom", [{"configMapRef": {"name": "more"}}])),
    seed("reference-missing", put(D, f"{POD} volumes 2 persistentVolumeClaim claimName", "other"), base=CLAIM),
    seed("key-missing", put(D, f"{POD} volumes 0 configMap items 0 key", "spec.yml")),
    seed("key-missing", add(_MORE), put(D, f"{POD} volumes 2", {"name": "more", "projected": _PROJECTED})),
]

SECURE = [
    seed("port-exposed", put(D, f"{SERVER} ports 2", {"name": "admin", "containerPort": 8081}),
         put("Service", "spec ports 1", {"name": "admin", "port": 8081, "targetPort": "admin"}),
         put("NetworkPolicy", "spec ingress 0 ports 1", {"port": "admin"})),
    seed("port-exposed", put("NetworkPolicy", "spec ingress 0 ports 1", {"port": 7070})),
    seed("service-public", put("Service", "spec type", "LoadBalancer")),
    seed("service-public", put("Service", "spec externalIPs", ["10.0.0.1"])),
    seed("policy-missing", without("NetworkPolicy")),
    seed("policy-missing", put("NetworkPolicy", "spec policyTypes", ["Ingress"])),
    seed("policy-open", put("NetworkPolicy", "spec egress", [{}])),
    seed("policy-blocks-port", put("NetworkPolicy", "spec ingress 0 ports 0 port", 8888)),
    seed("policy-blocks-port", drop("NetworkPolicy", "spec ingress 1")),
    seed("policy-blocks-redis", drop("NetworkPolicy", "spec egress 0"), base=REDIS),
    seed("policy-blocks-redis", put("NetworkPolicy", "spec egress 0 ports 0 port", 6380), base=REDIS),
    seed("torchserve-token", bare, drop(D, f"{SERVER} env"),
         put(D, f"{SERVER} args", ["torchserve", "--start", "--foreground"])),
    seed("torchserve-token", bare, drop(D, f"{SERVER} env"), foreign=True),
    seed("pod-restricted", put(D, f"{POD} securityContext runAsNonRoot", False)),
    seed("pod-restricted", put(D, f"{SERVER} securityContext runAsUser", 0)),
    seed("pod-restricted", drop(D, f"{SERVER} securityContext allowPrivilegeEscalation")),
    seed("pod-restricted", put(D, f"{SERVER} securityContext capabilities drop", ["NET_RAW"])),
    seed("pod-restricted", put(D, f"{SERVER} securityContext capabilities add", ["SYS_ADMIN"])),
    seed("pod-restricted", put(D, f"{POD} securityContext seccompProfile type", "Unconfined")),
    seed("pod-restricted", drop(D, f"{POD} securityContext seccompProfile")),
    seed("pod-restricted", put(D, f"{POD} volumes 1", {"name": "tmp", "hostPath": {"path": "/tmp"}})),
    seed("pod-restricted", put(D, f"{POD} hostNetwork", True)),
    seed("pod-restricted", put(D, f"{SERVER} ports 0 hostPort", 80)),
    seed("pod-restricted", put(D, f"{SERVER} securityContext privileged", True)),
    seed("pod-restricted", put(D, f"{POD} securityContext seLinuxOptions", {"type": "spc_t"})),
    seed("pod-restricted", put(D, f"{POD} securityContext appArmorProfile", {"type": "Unconfined"})),
    seed("pod-restricted", put(D, f"{POD} securityContext sysctls", [{"name": "net.core.somaxconn", "value": "1024"}])),
    seed("nowhere-to-write", put(D, f"{SERVER} volumeMounts 1 mountPath", "/scratch")),
    seed("nowhere-to-write", put(D, f"{SERVER} volumeMounts 1 readOnly", True)),
    seed("token-mounted", put(D, f"{POD} automountServiceAccountToken", True)),
    seed("secret-in-env", put(D, f"{SERVER} env", [{"name": "STORE_TOKEN", "value": "abc"}])),
    seed("secret-in-env", put(D, f"{SERVER} env", [{"name": "STORE", "value": "postgres://app:abc@store.svc/db"}])),
    seed("image-digest", put(D, f"{SERVER} image", "registry.local/marina/digits")),
    seed("image-digest", put(D, f"{SERVER} image", "registry.local:5000/digits:1.0")),
    seed("image-digest", put(D, f"{SERVER} image", "registry.local:5000/digits@sha256:" + "a" * 63)),
]  # fmt: skip

_WITHOUT_CPU = (drop(D, f"{SERVER} resources requests cpu"), drop(D, f"{SERVER} resources limits cpu"))
RUNNING = [
    seed("memory-overcommit", put(D, f"{SERVER} resources requests memory", "512Mi")),
    seed("memory-peak", put(D, f"{SERVER} resources limits memory", "512Mi"),
         put(D, f"{SERVER} resources requests memory", "512Mi")),
    seed("scratch-size", drop(D, f"{POD} volumes 1 emptyDir sizeLimit")),
    seed("readiness-is-liveness", put(D, f"{SERVER} livenessProbe httpGet path", "/live"),
         put(D, f"{SERVER} readinessProbe", {"httpGet": {"path": "/live", "port": "supervisor", "scheme": "HTTP"},
                                             "periodSeconds": 10, "failureThreshold": 6})),
    seed("readiness-is-liveness", put(D, f"{SERVER} livenessProbe httpGet path", "/live"),
         put(D, f"{SERVER} readinessProbe", {"httpGet": {"path": "/live", "port": 8090, "scheme": "HTTP"},
                                             "periodSeconds": 10, "failureThreshold": 6})),
    seed("liveness-of-model", drop(D, f"{SERVER} livenessProbe httpGet"),
         put(D, f"{SERVER} livenessProbe exec command",
             ["sh", "-c", "curl -sf -T cat.jpg http://localhost:8080/predictions/digits || exit 1"])),
    seed("readiness-ping", drop(D, f"{SERVER} readinessProbe httpGet"),
         put(D, f"{SERVER} readinessProbe exec command", ["curl", "-f", "localhost:8080/ping"])),
    seed("claim-shared", add("apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: models}\n"
                             "spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}"),
         base=CLAIM),
    seed("scaler-memory-only", put(HPA, "spec metrics 0", {"type": "Resource", "resource": {
        "name": "memory", "target": {"type": "Utilization", "averageUtilization": 80}}}), drop(HPA, "spec metrics 1")),
    seed("grace-period", bare, put(D, f"{SERVER} lifecycle preStop", {"exec": {"command": ["/bin/wait", "sleep 60"]}}),
         put(D, f"{POD} terminationGracePeriodSeconds", 5), foreign=True),
    seed("liveness-of-model", put(D, f"{SERVER} livenessProbe httpGet", {"path": "/predictions/digits", "port": 8080})),
    seed("readiness-ping", put(D, f"{SERVER} readinessProbe httpGet", {"path": "/ping", "port": "inference"})),
    seed("startup-missing", drop(D, f"{SERVER} startupProbe"), put(D, f"{SERVER} livenessProbe periodSeconds", 5)),
    seed("startup-budget", put(D, f"{SERVER} startupProbe failureThreshold", 2)),
    seed("grace-period", put(D, f"{POD} terminationGracePeriodSeconds", 30)),
    seed("grace-period", drop(D, f"{POD} terminationGracePeriodSeconds")),
    seed("grace-period", bare, put(D, f"{SERVER} lifecycle preStop sleep seconds", 90), foreign=True),
    seed("drain-missing", bare, drop(D, f"{SERVER} lifecycle")),
    seed("progress-deadline", put(D, "spec progressDeadlineSeconds", 120)),
]  # fmt: skip

AVAILABLE = [
    seed("pdb-blocks-drain", put(PDB, "spec maxUnavailable", 0), base=FIXED),
    seed("pdb-blocks-drain", move(PDB, "spec maxUnavailable", "minAvailable"), put(PDB, "spec minAvailable", "60%"),
         base=FIXED),
    seed("pdb-blocks-drain", move(PDB, "spec maxUnavailable", "minAvailable"), put(PDB, "spec minAvailable", 2)),
    seed("pdb-blocks-drain", put(PDB, "spec maxUnavailable", "0%"), base=KEDA),
    seed("pdb-blocks-drain", add("apiVersion: policy/v1\nkind: PodDisruptionBudget\nspec: {maxUnavailable: 1, "
                                 "unhealthyPodEvictionPolicy: AlwaysAllow, selector: {}}")),
    seed("pdb-selects-nothing", add("apiVersion: policy/v1\nkind: PodDisruptionBudget\nspec: {maxUnavailable: 0, "
                                    "unhealthyPodEvictionPolicy: AlwaysAllow}")),
    seed("pdb-selects-nothing", add("apiVersion: policy/v1\nkind: PodDisruptionBudget\nspec: {maxUnavailable: 1, "
                                    "unhealthyPodEvictionPolicy: AlwaysAllow, selector: {matchLabels: {a: b}}}")),
    seed("pdb-missing", without(PDB)),
    seed("rollout-capacity", put(D, "spec strategy rollingUpdate maxUnavailable", "25%")),
    seed("rollout-capacity", put(D, "spec strategy", {"type": "Recreate"})),
    seed("rollout-capacity", drop(D, "spec strategy")),
    seed("replicas-owned", put(D, "spec replicas", 2)),
    seed("replicas-owned", put(D, "spec replicas", 2), base=KEDA),
    seed("scaler-target", add(_HPA + "  minReplicas: 2"), put(HPA, "spec scaleTargetRef name", "digit")),
    seed("scaler-target", put(HPA, "spec scaleTargetRef apiVersion", "extensions/v1beta1")),
    seed("scaler-target", drop(HPA, "spec scaleTargetRef apiVersion")),
    seed("scaler-target", put("ScaledObject", "spec scaleTargetRef apiVersion", "apps/v1beta1"), base=KEDA),
    seed("scaler-twice", add(_HPA + "  minReplicas: 2"), base=KEDA),
    seed("scaler-twice", add(_HPA + "  minReplicas: 2")),
    seed("scaler-bounds", put("ScaledObject", "spec minReplicaCount", 0), base=KEDA),
    seed("scaler-bounds", put(HPA, "spec minReplicas", 0)),
    seed("cpu-without-request", *_WITHOUT_CPU),
    seed("cpu-without-request", *_WITHOUT_CPU, drop(HPA, "spec metrics")),
    seed("scaler-container", put(HPA, "spec metrics 1 containerResource container", "serving")),
    seed("scaler-container", put("ScaledObject", "spec triggers 1 metadata containerName", "serving"), base=KEDA),
    seed("scaler-safety-net", drop(HPA, "spec metrics 1")),
    seed("scaler-safety-net", drop("ScaledObject", "spec triggers 1"), drop("ScaledObject", "spec fallback"),
         base=KEDA),
    seed("scaler-behavior", put(HPA, "spec behavior scaleUp selectPolicy", "Disabled")),
    seed("scaler-flaps", put(HPA, "spec behavior scaleDown stabilizationWindowSeconds", 30)),
    seed("scaler-flaps", put("ScaledObject", "spec advanced horizontalPodAutoscalerConfig behavior scaleDown "
                             "stabilizationWindowSeconds", 5), base=KEDA),
]  # fmt: skip

SEEN = [
    seed("monitor-selects-nothing", put("PodMonitor", "spec selector matchLabels a", "b")),
    seed("monitor-selects-nothing", put("ServiceMonitor", "spec selector matchLabels a", "b"), base=BY_SERVICE),
    seed("monitor-port", put("PodMonitor", "spec podMetricsEndpoints 0 port", "metrics")),
    seed("monitor-port", put("ServiceMonitor", "spec endpoints 0 port", "http"), base=BY_SERVICE),
    seed("monitor-timeout", put("PodMonitor", "spec podMetricsEndpoints 0 scrapeTimeout", "1m")),
    seed("scrape-annotation", put(D, "spec template metadata annotations prometheus.io/port", "8082"),
         base={"kubernetes.monitoring": {"monitor": "annotations"}}),
    seed("dashboard-invalid", add("apiVersion: v1\nkind: ConfigMap\nmetadata: {labels: {grafana_dashboard: '1', "
                                  + ", ".join(f"app.kubernetes.io/{name}: digits" for name in (
                                      "name", "instance", "version", "component", "part-of", "managed-by"))
                                  + "}}\ndata: {a.json: '{'}")),
    seed("expression-invalid", put("PrometheusRule", "spec groups 0 rules 0 expr", "sum(")),
    seed("expression-invalid", put("ScaledObject", "spec triggers 0 metadata query", "sum by pod (up)"), base=KEDA),
    seed("metric-unknown", put("PrometheusRule", "spec groups 0 rules 0 expr", "marina_raedy")),
    seed("metric-unknown", put("PrometheusRule", "spec groups 0 rules 0 expr", "marina_raedy"), foreign=True),
    seed("metric-misused", put("PrometheusRule", "spec groups 0 rules 0 expr", "ts_inference_requests_total")),
    seed("metric-misused", put("PrometheusRule", "spec groups 0 rules 0 expr", 'marina_ready{colour="red"}')),
    seed("metric-elsewhere",
         put("PrometheusRule", "spec groups 0 rules 0 expr", 'sum(marina_ready{namespace="other"})'), foreign=True),
    seed("metric-elsewhere", put("ScaledObject", "spec triggers 0 metadata query",
         'sum(rate(ts_inference_requests_total{namespace="other"}[1m]))'), base=KEDA),
    seed("metric-counter", put(HPA, "spec metrics 0 pods metric name", "ts_inference_requests_total")),
    seed("metric-counter", put("ScaledObject", "spec triggers 0 metadata query", "sum(ts_inference_requests_total)"),
         base=KEDA),
    seed("metric-adapter", put(HPA, "spec metrics 0 pods metric name", "inference_request_per_second")),
    seed("keda-trigger", drop("ScaledObject", "spec triggers 0 metadata serverAddress"), base=KEDA),
    seed("origin-differs", put(D, "spec template metadata annotations marina/package", "0" * 64)),
    seed("origin-differs", put(D, "metadata annotations marina/evidence", "0" * 64)),
    seed("origin-differs", drop(HPA, "metadata annotations")),
    seed("origin-differs", put(D, "spec template metadata annotations marina/config", "0" * 64)),
]  # fmt: skip

SEEDS = [*OBJECTS, *CONNECTED, *SECURE, *RUNNING, *AVAILABLE, *SEEN]
