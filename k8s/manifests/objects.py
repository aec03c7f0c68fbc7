"""Renders all objects of a plan, by file: those for any cluster at the top, those that need an operator in folders.

`kubectl apply -f` applies every `.yaml` in a folder but nothing in its subfolders, so the top level works on a bare
cluster. The kustomization is called `Kustomization`, because under its usual name `kubectl` would apply it as an
object."""

import json

from marina.k8s.extending import PatchedField, extend, find_patched_fields
from marina.k8s.manifests import autoscaler, deployment, engines, gateway, model_volume, network
from marina.k8s.manifests.config_map import config_map
from marina.k8s.manifests.labels import MANAGED_BY, PART_OF, metadata, pods_selector, selector_labels
from marina.k8s.manifests.plan import Plan
from marina.k8s.manifests.yaml_text import Files, Manifest, ordered, resource
from marina.k8s.monitoring import SERVER_CONTAINER, alert_rules, recording_rules, render_dashboard

_DEPLOYMENT = engines.DEPLOYMENT
# The folders, and what a cluster must have for their objects.
ADDONS = {
    "monitoring": "the Prometheus operator",
    "keda": "KEDA 2.17 or later",
    "gateway": "the Gateway API 1.2 or later, and Envoy Gateway 1.9 for policies",
}


def render_objects(plan: Plan) -> Files:
    """Every object by its file, with the spec's pod fields and patches, in the order in which to apply them."""
    files = _extended(plan)
    return engines.adapted(files, plan) if plan.engine else files


def patched_fields(plan: Plan) -> list[PatchedField]:
    """The derived fields of the pods that patches changed."""
    if not plan.spec.kubernetes.patches:
        return []
    before, after = (files[_DEPLOYMENT][0] for files in (_unextended(plan), _extended(plan)))
    return list(find_patched_fields(before, after, SERVER_CONTAINER))


def _extended(plan: Plan) -> Files:
    containers = (SERVER_CONTAINER, model_volume.LOADER)
    return extend(_unextended(plan), plan.spec, containers=containers, server=SERVER_CONTAINER)


def _unextended(plan: Plan) -> Files:
    return {name: documents for name, documents in (_base(plan) | _addons(plan)).items() if documents}


def _base(plan: Plan) -> Files:
    spec = plan.spec
    return {
        "00-namespace.yaml": ordered(_namespace(plan)) if spec.kubernetes.create_namespace else [],
        "10-service-account.yaml": ordered(deployment.service_account(plan)),
        "20-config.yaml": ordered(config_map(plan)),
        # Before the pods, so that they are never unprotected.
        "30-network-policy.yaml": ordered(network.network_policy(plan)) if spec.kubernetes.network.policy else [],
        _DEPLOYMENT: ordered(deployment.deployment(plan)),
        engines.SERVICE: ordered(network.service(plan)),
        "60-disruption-budget.yaml": ordered(autoscaler.disruption_budget(plan)),
        "70-autoscaler.yaml": ordered(autoscaler.autoscaler(plan)) if spec.scaling.autoscaler == "hpa" else [],
    }


def _addons(plan: Plan) -> Files:
    route, by_keda = network.http_route(plan), plan.spec.scaling.autoscaler == "keda"
    return {
        **_monitoring(plan),
        "keda/scaled-object.yaml": [autoscaler.scaled_object(plan)] if by_keda else [],
        # By their names, `kubectl apply` makes the policies first: the route is never open without them.
        "gateway/authentication.yaml": ordered(*gateway.security(plan)),
        "gateway/backend-traffic.yaml": ordered(*gateway.traffic(plan)),
        engines.ROUTE: [route] if route else [],
    }


def _monitoring(plan: Plan) -> Files:
    settings = plan.spec.kubernetes.monitoring
    if settings.monitor == "none":
        return {}
    files = {"monitoring/dashboard.yaml": ordered(_dashboard(plan))}
    if settings.monitor == "annotations":
        return files
    by_service = settings.monitor == "service"
    # A scrape that takes longer than half the interval is given up.
    interval_s, timeout_s = settings.scrape_interval_s, max(1, settings.scrape_interval_s // 2)
    endpoint = {"port": deployment.PAGES, "path": "/metrics", "scheme": "http"}
    endpoint |= {"interval": f"{interval_s}s", "scrapeTimeout": f"{timeout_s}s"}
    spec = {
        "selector": {"matchLabels": selector_labels(plan, "pages") if by_service else pods_selector(plan)},
        # The page's labels never collide with those that Prometheus adds, so none has to be honoured over them.
        "endpoints" if by_service else "podMetricsEndpoints": [endpoint | {"honorLabels": False}],
    }
    version, kind = "monitoring.coreos.com/v1", "ServiceMonitor" if by_service else "PodMonitor"
    meta = _monitoring_metadata(plan, plan.name)
    monitor = resource(version, kind, meta, spec=spec)
    rules = resource(version, "PrometheusRule", meta, spec={"groups": rule_groups(plan)})
    pages = ordered(network.pages_service(plan)) if by_service else []
    return {"monitoring/monitor.yaml": [*pages, monitor], "monitoring/rules.yaml": [rules], **files}


def rule_groups(plan: Plan) -> list[Manifest]:
    """All rules of a service, for a PrometheusRule or a rule file."""
    return [*recording_rules(plan.spec, plan.cold_start_s), *alert_rules(plan.spec, plan.workload)]


def dashboard_text(plan: Plan) -> str:
    """The dashboard as JSON for Grafana."""
    page = render_dashboard(plan.spec, _target_rps(plan), plan.workload)
    return json.dumps(page, indent=1, ensure_ascii=False) + "\n"


def _target_rps(plan: Plan) -> float | None:
    """The requests/s per pod that the autoscaler aims at; None if it scales by something else or the target is
    unknown."""
    return plan.target_rps_per_pod if plan.autoscaled and plan.spec.scaling.metric == "requests" else None


def _dashboard(plan: Plan) -> Manifest:
    """The dashboard in a ConfigMap with the label by which Grafana's sidecar finds dashboards."""
    meta = _monitoring_metadata(plan, f"{plan.name}-dashboard", grafana_dashboard="1")
    # The sidecar writes the files of all namespaces into one folder.
    data = {f"{plan.namespace}.{plan.name}.json": dashboard_text(plan)}
    return resource("v1", "ConfigMap", meta, data=data)


def _namespace(plan: Plan) -> Manifest:
    """The namespace, which enforces the `restricted` profile. Other services may run in it, so it has nothing that is
    specific to this one."""
    levels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "audit", "warn")}
    labels = {
        "app.kubernetes.io/name": plan.namespace,
        "app.kubernetes.io/part-of": PART_OF,
        "app.kubernetes.io/managed-by": MANAGED_BY,
    }
    return resource("v1", "Namespace", {"name": plan.namespace, "labels": labels | levels})


def _monitoring_metadata(plan: Plan, name: str, **more: str) -> Manifest:
    """Metadata with the labels in the spec by which the cluster's operators select their objects, and more labels."""
    meta = metadata(plan, name, component="monitoring")
    return meta | {"labels": meta["labels"] | plan.spec.kubernetes.monitoring.labels | more}
