"""The judge that another engine asks whether a new version may replace the old one: a pod that reads the pages of the
pods of both, and serves its verdict. It asks the cluster for nothing, so it needs no permissions: two Services without
an address of their own name the pods."""

from marina.config.sections import DEFAULT_GATE
from marina.k8s.manifests import network, pod
from marina.k8s.manifests.config_map import CONFIG_FILE, judged_map, judged_name
from marina.k8s.manifests.deployment import PAGES
from marina.k8s.manifests.labels import JUDGE, NAME_LABEL, labels, metadata, pods_selector, selector_labels
from marina.k8s.manifests.plan import MIB, Plan
from marina.k8s.manifests.yaml_text import Manifest, ordered, resource

PORT = 8099
# Until the engine notices new pods and the name servers know them, the judge may have begun later than the engine.
_LATER_S = 60


def judge_name(plan: Plan) -> str:
    """The name of the judge's objects."""
    return f"{plan.name}-{JUDGE}"


def judge_url(plan: Plan, path: str = "/") -> str:
    """The address at which an engine asks."""
    return f"http://{judge_name(plan)}.{plan.namespace}.svc:{PORT}{path}"


def verdict_after_s(plan: Plan) -> int:
    """When the verdict is there, counted from the first moment at which new pods serve."""
    gate = plan.spec.kubernetes.rollout.gate or DEFAULT_GATE
    return round(60 * gate.minutes) + _LATER_S


def pages_of(plan: Plan, side: str) -> str:
    """The name of the Service for the pages of the pods of one version: `old` or `new`."""
    return f"{plan.name}-{side}-pages"


def judge_objects(plan: Plan) -> list[Manifest]:
    """The judge, and the two Services by which it finds the pods."""
    return ordered(
        judged_map(plan),
        _policy(plan),
        _deployment(plan),
        _service(plan),
        *(_pages(plan, side) for side in ("old", "new")),
    )


def _deployment(plan: Plan) -> Manifest:
    spec = {
        "replicas": 1,
        "revisionHistoryLimit": 3,
        "selector": {"matchLabels": selector_labels(plan, JUDGE)},
        # Two would judge the same pods apart.
        "strategy": {"type": "Recreate"},
        "template": {"metadata": {"labels": labels(plan, JUDGE)}, "spec": _pod_spec(plan)},
    }
    return resource("apps/v1", "Deployment", metadata(plan, judge_name(plan), component=JUDGE), spec=spec)


def _pod_spec(plan: Plan) -> Manifest:
    probe = {"httpGet": {"path": "/", "port": JUDGE, "scheme": "HTTP"}, "periodSeconds": 10, "timeoutSeconds": 5}
    container = {
        "name": JUDGE,
        "args": _arguments(plan),
        "image": plan.judge_image,
        "imagePullPolicy": "IfNotPresent",
        "livenessProbe": probe | {"failureThreshold": 6},
        "ports": [{"name": JUDGE, "containerPort": PORT, "protocol": "TCP"}],
        "readinessProbe": probe,
        "resources": pod.exactly({"cpu": "500m", "memory": "512Mi", "ephemeral-storage": "128Mi"}),
        "securityContext": pod.container_security(),
        "volumeMounts": [pod.mount("config", "/config", read_only=True), pod.mount("tmp", "/tmp")],
    }
    config = {"name": judged_name(plan), "items": [{"key": CONFIG_FILE, "path": CONFIG_FILE}]}
    return {
        "automountServiceAccountToken": False,
        "containers": [container],
        "enableServiceLinks": False,
        "imagePullSecrets": pod.pull_secrets(plan),
        "securityContext": pod.pod_security(plan),
        "serviceAccountName": plan.name,
        "volumes": [{"name": "config", "configMap": config}, pod.scratch("tmp", 64 * MIB)],
    }


def _arguments(plan: Plan) -> list[str]:
    sides = [
        word
        for side in ("old", "new")
        for word in (f"--{side}", f"http://{pages_of(plan, side)}.{plan.namespace}.svc:{plan.ports.supervisor}")
    ]
    return ["judge", f"/config/{CONFIG_FILE}", "--follow", *sides, "--host", "::", "--port", str(PORT)]


def _service(plan: Plan) -> Manifest:
    ports = [{"name": JUDGE, "appProtocol": "http", "port": PORT, "protocol": "TCP", "targetPort": JUDGE}]
    spec = {"type": "ClusterIP", "ports": ports, "selector": selector_labels(plan, JUDGE)}
    return resource("v1", "Service", metadata(plan, judge_name(plan), component=JUDGE), spec=spec)


def _pages(plan: Plan, side: str) -> Manifest:
    """The pods of one version. Argo's controller narrows the selectors of both to the hash of that version."""
    selector = pods_selector(plan)
    if plan.engine == "flagger":
        selector = selector | {NAME_LABEL: f"{plan.name}-primary" if side == "old" else plan.name}
    ports = [network.service_port(PAGES, plan.ports.supervisor)]
    spec = {"type": "ClusterIP", "clusterIP": "None", "ports": ports, "selector": selector}
    return resource("v1", "Service", metadata(plan, pages_of(plan, side), component=JUDGE), spec=spec)


def _policy(plan: Plan) -> Manifest:
    """Lets the judge read the pages, and every namespace read its verdict: engines run in one of their own, and a
    verdict is no secret."""
    server = {"podSelector": {"matchLabels": pods_selector(plan)}}
    spec = {
        "egress": [
            network.allow_to([server], network.policy_port(plan.ports.supervisor)),
            *network.dns_rules(plan),
        ],
        "ingress": [network.allow_from([{"namespaceSelector": {}}], PORT)],
        "podSelector": {"matchLabels": selector_labels(plan, JUDGE)},
        "policyTypes": ["Ingress", "Egress"],
    }
    named = metadata(plan, judge_name(plan), component=JUDGE)
    return resource("networking.k8s.io/v1", "NetworkPolicy", named, spec=spec)
