"""The Deployment: its pods get requests only once they can serve, are replaced one by one, and end without losing a
request."""

import math

from marina.config.quantity import canonical
from marina.k8s.manifests import model_volume, pod, spot
from marina.k8s.manifests.config_map import CONFIG_FILE, CONFIG_FOLDER, config_sha256
from marina.k8s.manifests.labels import (
    CONFIG_ANNOTATION,
    EVIDENCE_ANNOTATION,
    NAME_LABEL,
    PACKAGE_ANNOTATION,
    labels,
    metadata,
    pods_selector,
    selector_labels,
)
from marina.k8s.manifests.plan import MIN_READY_S, Plan, in_mib
from marina.k8s.manifests.yaml_text import Manifest, resource
from marina.k8s.monitoring import SERVER_CONTAINER

INFERENCE, PAGES = "inference", "supervisor"
# The label by which an engine tells the pods of two versions apart.
_HASHES = {"argo-rollouts": "rollouts-pod-template-hash"}


def service_account(plan: Plan) -> Manifest:
    """A ServiceAccount of its own without any rights: no Role, no token."""
    return resource("v1", "ServiceAccount", metadata(plan), automountServiceAccountToken=False)


def deployment(plan: Plan) -> Manifest:
    """The Deployment. It sets no number of pods if an autoscaler controls it."""
    rolling = {"maxSurge": plan.max_surge, "maxUnavailable": plan.spec.kubernetes.rollout.max_unavailable}
    spec = {
        "minReadySeconds": MIN_READY_S,
        "progressDeadlineSeconds": plan.progress_deadline_s,
        "replicas": None if plan.autoscaled else plan.spec.scaling.min_replicas,
        "revisionHistoryLimit": 3,
        "selector": {"matchLabels": selector_labels(plan)},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": rolling},
        "template": _template(plan),
    }
    annotations = {EVIDENCE_ANNOTATION: plan.evidence.sha256} if plan.evidence else None
    return resource("apps/v1", "Deployment", metadata(plan, annotations=annotations), spec=spec)


def _template(plan: Plan) -> Manifest:
    # Every change in the template replaces the pods, so it contains only what they depend on.
    annotations = {CONFIG_ANNOTATION: config_sha256(plan)}
    if plan.package:
        annotations[PACKAGE_ANNOTATION] = plan.package.sha256
    if plan.spec.kubernetes.monitoring.monitor == "annotations":
        annotations |= {
            "prometheus.io/scrape": "true",
            "prometheus.io/port": str(plan.ports.supervisor),
            "prometheus.io/path": "/metrics",
        }
    return {"metadata": {"labels": labels(plan), "annotations": annotations}, "spec": _pod_spec(plan)}


def _pod_spec(plan: Plan) -> Manifest:
    mounted = [*pod.base_volumes(plan), *model_volume.mar_volumes(plan)]
    return {
        "affinity": spot.spot_affinity(plan),
        "automountServiceAccountToken": False,
        "containers": [_server(plan, [mount for _, mount in mounted])],
        # Otherwise Kubernetes would set a dozen unused variables for every Service in the namespace.
        "enableServiceLinks": False,
        "imagePullSecrets": pod.pull_secrets(plan),
        "initContainers": model_volume.loaders(plan) or None,
        "nodeSelector": plan.node_selector or None,
        "securityContext": pod.pod_security(plan),
        "serviceAccountName": plan.name,
        "terminationGracePeriodSeconds": plan.grace_period_s,
        "tolerations": _tolerations(plan),
        "topologySpreadConstraints": _spread(plan),
        "volumes": [*(volume for volume, _ in mounted), *model_volume.secrets(plan)],
    }


def _server(plan: Plan, mounts: list[Manifest]) -> Manifest:
    ports = {INFERENCE: plan.ports.inference, PAGES: plan.ports.supervisor}
    return {
        "name": SERVER_CONTAINER,
        "args": _arguments(plan),
        "image": plan.image,
        "imagePullPolicy": "IfNotPresent",
        # A pod may take long until it is first ready. Liveness only checks the process, never the model.
        "livenessProbe": _probe("/live", period_s=10, failures=6, timeout_s=5),
        "ports": [{"name": name, "containerPort": number, "protocol": "TCP"} for name, number in ports.items()],
        "readinessProbe": _probe("/ready", period_s=2, failures=2, timeout_s=2),
        "resources": _resources(plan),
        "securityContext": pod.container_security(),
        "startupProbe": _probe("/ready", period_s=2, failures=math.ceil(plan.startup_budget_s / 2), timeout_s=2),
        "volumeMounts": mounts,
    }


def _arguments(plan: Plan) -> list[str] | None:
    """The server's arguments; None if those of the image will do."""
    model = model_volume.mar_arguments(plan)
    if plan.signatures:
        model = [*(model or ["--mar", model_volume.IN_IMAGE]), "--signatures", CONFIG_FOLDER]
    return [f"{CONFIG_FOLDER}/{CONFIG_FILE}", *model, "--host", "::"] if model else None


def _probe(path: str, *, period_s: int, failures: int, timeout_s: int) -> Manifest:
    return {
        "failureThreshold": failures,
        "httpGet": {"path": path, "port": PAGES, "scheme": "HTTP"},
        "periodSeconds": period_s,
        "successThreshold": 1,
        "timeoutSeconds": timeout_s,
    }


def _resources(plan: Plan) -> Manifest:
    resources = plan.spec.kubernetes.resources
    amounts = {"cpu": canonical(resources.cpu), "memory": plan.memory, "ephemeral-storage": in_mib(plan.storage_bytes)}
    return pod.exactly(amounts | ({resources.gpu_resource: str(resources.gpu)} if resources.gpu else {}))


def _tolerations(plan: Plan) -> list[Manifest]:
    taints: list[Manifest] = []
    if plan.spec.kubernetes.resources.gpu:
        # GPU nodes usually have a taint with the name of the resource.
        taints.append({"effect": "NoSchedule", "key": "nvidia.com/gpu", "operator": "Exists"})
    taints += spot.spot_tolerations(plan)
    for taint in plan.spec.kubernetes.tolerations:
        rest, _, effect = taint.partition(":")
        key, equals, value = rest.partition("=")
        wanted = {"operator": "Equal", "value": value} if equals else {"operator": "Exists"}
        taints.append({"effect": effect or None, "key": key, **wanted})
    # The taints of a node that is lost. By default Kubernetes tolerates them for 300 s.
    lost_s = plan.spec.kubernetes.node_loss_s
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        if not any(taint["key"] == key for taint in taints):
            taints.append({"effect": "NoExecute", "key": key, "operator": "Exists", "tolerationSeconds": lost_s})
    return taints


def _spread(plan: Plan) -> list[Manifest]:
    """Spreads pods over zones and nodes as evenly as there is room. Each version is spread by itself, so that a rollout
    is spread, too. Where a spot node is taken away, how many pods are on it is not left to chance."""
    own: Manifest = {"matchLabels": selector_labels(plan)}
    if plan.engine == "flagger":
        # In the pods that it renames, Flagger renames this too, in this form only.
        named = {"key": NAME_LABEL, "operator": "In", "values": [plan.name]}
        own = {"matchExpressions": [named], "matchLabels": pods_selector(plan)}
    strict = spot.spot_skews(plan)
    loose = {key: 1 for key in ("topology.kubernetes.io/zone", "kubernetes.io/hostname") if key not in strict}
    return [
        {
            "labelSelector": own,
            "matchLabelKeys": [_HASHES.get(plan.engine, "pod-template-hash")],
            "maxSkew": skew,
            "topologyKey": key,
            "whenUnsatisfiable": "DoNotSchedule" if key in strict else "ScheduleAnyway",
        }
        for key, skew in (loose | strict).items()
    ]
