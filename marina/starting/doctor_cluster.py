"""Probes of the cluster that the kubeconfig names: whether it answers, and what it brings for the manifests."""

from __future__ import annotations

import json

from marina.starting.doctor import Finding
from marina.starting.doctor_local import CommandFailed, output_of, python

_ANSWER_S = 25
_ASK = """
import json
from config.errors import MarinaError
try:
    from k8s import describe_capacity, connect, prometheus_selectors
    cluster = connect()
    found = {"context": cluster.context, "server": cluster.server}
    found |= {"version": cluster.version()["gitVersion"], "groups": sorted(cluster.groups())}
    found |= {"nodes": describe_capacity(cluster), "prometheus": prometheus_selectors(cluster)}
except MarinaError as err:
    found = {"error": err.message}
print(json.dumps(found))
"""
_GROUPS = (
    ("prometheus operator", ("monitoring.coreos.com",), "deploy: no metrics, rules or alerts without it",
     "helm install kube-prometheus-stack prometheus-community/kube-prometheus-stack"),
    ("pod metrics", ("custom.metrics.k8s.io", "external.metrics.k8s.io"), "deploy: autoscaling by rate",
     "helm install prometheus-adapter prometheus-community/prometheus-adapter"),
    ("resource metrics", ("metrics.k8s.io",), "deploy: autoscaling by CPU",
     "helm install metrics-server metrics-server/metrics-server"),
)  # fmt: skip


def _kubectl() -> list[Finding]:
    try:
        version = json.loads(output_of("kubectl", "version", "--client", "--output", "json"))["clientVersion"][
            "gitVersion"
        ]
    except (CommandFailed, ValueError, LookupError) as err:
        hint = "https://kubernetes.io/docs/tasks/tools"
        return [Finding("kubectl", "missing", str(err), "no verb; the hints of deploy and status name it", hint)]
    return [Finding("kubectl", "ok", version)]


def _cluster() -> list[Finding]:
    wanted_by = "deploy, rollback, status"
    try:
        cluster = json.loads(python(_ASK, timeout_s=_ANSWER_S))
    except CommandFailed as err:
        hint = "kubectl cluster-info"
        return [Finding("cluster", "broken", f"the kubeconfig's cluster: {err}", wanted_by, hint)]
    if "error" in cluster:
        return [Finding("cluster", "missing", cluster["error"], wanted_by, "export KUBECONFIG=FILE")]
    text = f"{cluster['version']}, context `{cluster['context']}`, {cluster['server']}"
    findings = [Finding("cluster", "ok", text), *_brings(set(cluster["groups"]))]
    findings += [Finding("nodes", "ok", cluster["nodes"])] if cluster["nodes"] else []
    # What is labelled otherwise is never scraped; `deploy` says whether a spec's objects fit.
    findings += [Finding("prometheus labels", "ok", cluster["prometheus"])] if cluster["prometheus"] else []
    return findings


def _brings(groups: set[str]) -> list[Finding]:
    """What the cluster serves beside its own kinds."""
    findings = []
    for name, wanted, why, hint in _GROUPS:
        if present := sorted(groups & set(wanted)):
            findings.append(Finding(name, "ok", ", ".join(present)))
        else:
            findings.append(Finding(name, "missing", f"the cluster does not serve `{wanted[0]}`", why, hint))
    return findings


CLUSTER = (_kubectl, _cluster)
