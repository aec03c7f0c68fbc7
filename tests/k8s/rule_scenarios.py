"""Runs Prometheus's own tests of rules: the series of a healthy pod, changes to them, and the alerts that must fire."""

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from specs import digits_spec
from tools import needs

from marina.config.spec import Spec
from marina.k8s.monitoring.expressions import SERVER_CONTAINER
from marina.k8s.monitoring.rules import alert_rules, recording_rules
from marina.k8s.monitoring.workloads import DEPLOYMENT, Workload

CUDA = {"serving.device": "cuda", "model.precision": "fp16", "kubernetes.resources.gpu": 1}
POD, OTHER = "digits-6b5f9c7d8c-x2k4p", "digits-6b5f9c7d8c-zz7vq"
AT = f'namespace="marina",pod="{POD}"'
PAGE = f'{AT},model="digits"'
KUBE = 'namespace="marina"'
DURATION, ANSWERS = "inference_request_duration_seconds", "inference_request_duration_seconds_count"
HPA = 'namespace="marina",horizontalpodautoscaler="digits"'


def groups(spec: Spec, workload: Workload = DEPLOYMENT) -> list[dict[str, Any]]:
    return recording_rules(spec) + alert_rules(spec, workload)


def rules(spec: Spec) -> dict[str, dict[str, Any]]:
    return {rule.get("alert", rule.get("record")): rule for group in groups(spec) for rule in group["rules"]}


def traffic(phases: str, *, code: str = "200", within: str | None = None, pod: str = AT) -> dict[str, str]:
    """The counters of requests, all of which take at most 0.1 s. `within` counts those within the objective; all are if
    it is not given."""
    fast = phases if within is None else within
    own = f'{pod},model="digits",code="{code}"'
    edges = {"0.02": fast, "0.05": fast, "0.1": phases, "+Inf": phases}
    return {
        f"{ANSWERS}{{{own}}}": phases,
        **{f'{DURATION}_bucket{{{own},le="{edge}"}}': values for edge, values in edges.items()},
    }


def state(samples: int) -> dict[str, str]:
    """The series of a healthy pod besides its traffic."""
    constant = {
        f"marina_ready{{{PAGE}}}": 1,
        f'marina_package_info{{{PAGE},sha256="a"}}': 1,
        f'marina_worker_restarts_total{{{PAGE},worker="9000"}}': 0,
        f"marina_worker_renewals_total{{{PAGE}}}": 0,
        f'inference_artifact_info{{{PAGE},compile="aot",artifact="aot"}}': 1,
        f'kube_deployment_spec_replicas{{{KUBE},deployment="digits"}}': 1,
        f'kube_deployment_status_replicas_available{{{KUBE},deployment="digits"}}': 1,
        f'kube_pod_container_status_restarts_total{{{AT},container="{SERVER_CONTAINER}"}}': 0,
        f'kube_pod_container_resource_requests{{{AT},container="{SERVER_CONTAINER}",resource="cpu"}}': 2,
        f'kube_pod_container_resource_limits{{{AT},container="{SERVER_CONTAINER}",resource="memory"}}': 1000,
        f'container_memory_working_set_bytes{{{AT},container="{SERVER_CONTAINER}"}}': 500,
        f"kube_horizontalpodautoscaler_status_desired_replicas{{{HPA}}}": 2,
        f"kube_horizontalpodautoscaler_spec_max_replicas{{{HPA}}}": 10,
        f"kube_horizontalpodautoscaler_spec_min_replicas{{{HPA}}}": 2,
        f'kube_horizontalpodautoscaler_status_condition{{{HPA},condition="ScalingActive",status="false"}}': 0,
        f'inference_worker_cuda_bytes{{{PAGE},pid="7"}}': 1000,
        f'DCGM_FI_DEV_FB_USED{{{AT},gpu="0"}}': 10,
        f'DCGM_FI_DEV_FB_FREE{{{AT},gpu="0"}}': 90,
    }
    cpu = f'container_cpu_usage_seconds_total{{{AT},container="{SERVER_CONTAINER}"}}'
    return {series: f"{value}x{samples}" for series, value in constant.items()} | {cpu: f"0+15x{samples}"}


@dataclass
class Scenario:
    """Series that differ from a healthy pod's (None removes one), and the alerts that fire at each time."""

    firing: dict[str, set[str]]
    series: dict[str, str | None] = field(default_factory=dict)
    interval_s: int = 15
    evaluated_every: str = "30s"
    spec: dict[str, Any] = field(default_factory=dict)
    workload: Workload = DEPLOYMENT


def promtool(folder: Path, scenario: Scenario) -> str:
    """Runs a scenario and returns the complaints: at each time exactly its alerts must fire."""
    spec = digits_spec(scenario.spec)
    severity = {rule["alert"]: rule["labels"]["severity"] for rule in rules(spec).values() if "alert" in rule}
    samples = max(map(minutes, scenario.firing)) * 60 // scenario.interval_s + 1
    healthy = state(samples) | traffic(f"0+{100 * scenario.interval_s}x{samples}")
    expected = [
        {
            "expr": 'count by (alertname, severity) (ALERTS{alertstate="firing"})',
            "eval_time": at,
            "exp_samples": [
                {"labels": f'{{alertname="Marina{name}",severity="{severity[f"Marina{name}"]}"}}', "value": 1}
                for name in sorted(names)
            ],
        }
        for at, names in scenario.firing.items()
    ]
    series, test = healthy | scenario.series, {"promql_expr_test": expected}
    how = scenario.interval_s, scenario.evaluated_every, scenario.workload
    return run_rule_test(folder, spec, series, test, *how)


def run_rule_test(
    folder: Path,
    spec: Spec,
    series: Mapping[str, str | None],
    test: dict[str, Any],
    interval_s: int = 15,
    evaluated_every: str = "30s",
    workload: Workload = DEPLOYMENT,
) -> str:
    """The complaints of `promtool test rules`; empty if all is as expected."""
    given = [{"series": name, "values": values} for name, values in series.items() if values is not None]
    whole = {"interval": f"{interval_s}s", "input_series": given} | test
    content = {"rule_files": ["rules.yaml"], "evaluation_interval": evaluated_every, "tests": [whole]}
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": groups(spec, workload)}))
    (folder / "test.yaml").write_text(yaml.safe_dump(content, width=10_000))
    command = [needs("promtool", package="prometheus"), "test", "rules", "test.yaml"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr or "failed"


def minutes(text: str) -> int:
    hours, _, rest = text.rpartition("h")
    return 60 * int(hours or 0) + int(rest.removesuffix("m") or 0)
