"""Probes of the cluster in the kubeconfig: does it answer, and does it have what the manifests use?"""

import json

from marina.starting.doctor import ProbeResult
from marina.starting.doctor_local import CommandFailed, output_of, python

_ANSWER_S = 25
_ASK_CLUSTER = """
import json
from marina.config.errors import MarinaError
try:
    from marina.k8s.cluster import connect, prometheus_selectors
    cluster = connect()
    facts = {"context": cluster.context, "server": cluster.server}
    facts |= {"version": cluster.version()["gitVersion"], "groups": sorted(cluster.groups())}
    facts["prometheus"] = prometheus_selectors(cluster)
except MarinaError as err:
    facts = {"error": err.message}
print(json.dumps(facts))
"""
_COMMUNITY = "--repo https://prometheus-community.github.io/helm-charts -n monitoring"
_GROUPS = (
    (
        "prometheus operator",
        ("monitoring.coreos.com",),
        "deploy: no metrics, rules or alerts without it",
        f"helm upgrade --install monitoring kube-prometheus-stack {_COMMUNITY} --create-namespace",
    ),
    (
        "pod metrics",
        ("custom.metrics.k8s.io", "external.metrics.k8s.io"),
        "deploy: autoscaling by rate",
        f"helm upgrade --install prometheus-adapter prometheus-adapter {_COMMUNITY} "
        "-f build/NAME/prometheus/adapter-values.yaml, which `marina manifests SPEC` writes",
    ),
    (
        "resource metrics",
        ("metrics.k8s.io",),
        "deploy: autoscaling by CPU",
        "helm upgrade --install metrics-server metrics-server "
        "--repo https://kubernetes-sigs.github.io/metrics-server -n kube-system",
    ),
)


def _kubectl() -> list[ProbeResult]:
    try:
        version = json.loads(output_of("kubectl", "version", "--client", "--output", "json"))["clientVersion"][
            "gitVersion"
        ]
    except (CommandFailed, ValueError, LookupError) as err:
        hint = "https://kubernetes.io/docs/tasks/tools"
        return [ProbeResult("kubectl", "missing", str(err), "no verb; the hints of deploy and status name it", hint)]
    return [ProbeResult("kubectl", "ok", version)]


def _cluster() -> list[ProbeResult]:
    wanted_by = "deploy, rollback, status, delete"
    try:
        cluster = json.loads(python(_ASK_CLUSTER, timeout_s=_ANSWER_S))
    except CommandFailed as err:
        hint = "kubectl cluster-info"
        return [ProbeResult("cluster", "broken", f"the kubeconfig's cluster: {err}", wanted_by, hint)]
    if "error" in cluster:
        return [ProbeResult("cluster", "missing", cluster["error"], wanted_by, "export KUBECONFIG=FILE")]
    text = f"{cluster['version']}, context `{cluster['context']}`, {cluster['server']}"
    findings = [ProbeResult("cluster", "ok", text), *_api_groups(set(cluster["groups"]))]
    # Prometheus ignores monitors with other labels; `deploy` checks whether a spec's objects have these.
    findings += [ProbeResult("prometheus labels", "ok", cluster["prometheus"])] if cluster["prometheus"] else []
    return findings


def _api_groups(groups: set[str]) -> list[ProbeResult]:
    """Which of the API groups that manifests use the cluster serves, besides Kubernetes' own."""
    findings = []
    for name, wanted, why, hint in _GROUPS:
        if present := sorted(groups & set(wanted)):
            findings.append(ProbeResult(name, "ok", ", ".join(present)))
        else:
            findings.append(ProbeResult(name, "missing", f"the cluster does not serve `{wanted[0]}`", why, hint))
    return findings


CLUSTER = (_kubectl, _cluster)
