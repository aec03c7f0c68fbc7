"""The values of prometheus-adapter's Helm chart: what the HorizontalPodAutoscaler may ask for, and how it is measured.

A rule is about all models of a cluster at once, because the adapter adds the namespace and the pods that it is asked
about; so it is the same for every spec with the same scrape interval.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from config.spec import Spec
from k8s.monitoring.expressions import EXPECTED, RUNNING, WAITING, rate_window

# The metric of a pod for each `scaling.metric`, as the autoscaler names it.
METRICS = {
    "requests": "inference_requests_per_second",
    "queue_time": "inference_queue_seconds",
    "gpu": "gpu_utilization_percent",
    "waiting": "inference_waiting_requests",
}
# The slots of a pod that are in use, beside `waiting`: where nobody waits they tell whether a pod less would do.
RUNNING_METRIC = "inference_running_requests"
# The metric of all pods of a model together, with `scaling.forecast`.
EXPECTED_METRIC = "inference_expected_requests_per_second"


def adapter_values(spec: Spec) -> dict[str, Any]:
    """Values for the chart `prometheus-community/prometheus-adapter`; `rules.custom` is what to add to an adapter that
    is already there."""
    address, external = urlsplit(spec.scaling.prometheus), external_rules(spec)
    return {
        "prometheus": {
            "url": f"{address.scheme}://{address.hostname}",
            "port": address.port or (443 if address.scheme == "https" else 80),
            "path": address.path.rstrip("/"),
        },
        # No older than what an autoscaler looks at: a pod's first reading names its series.
        "metricsRelistInterval": rate_window(spec),
        "rules": {"default": False, "custom": adapter_rules(spec)} | ({"external": external} if external else {}),
    }


def adapter_rules(spec: Spec) -> list[dict[str, Any]]:
    """One rule for each metric of `METRICS`; a cluster without GPUs has no series for the last one, which does no
    harm."""
    window = rate_window(spec)
    arrivals = f"sum(rate(ts_inference_requests_total{{<<.LabelMatchers>>}}[{window}])) by (<<.GroupBy>>)"
    rates = f"sum(rate(<<.Series>>{{<<.LabelMatchers>>}}[{window}])) by (<<.GroupBy>>)"
    total = "sum(<<.Series>>{<<.LabelMatchers>>,STATE}) by (<<.GroupBy>>)"
    used = "avg(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)"
    return [
        _rule("requests", "ts_inference_requests_total", rates),
        _rule("queue_time", "ts_queue_latency_seconds_total", f"{rates} / clamp_min({arrivals}, 1)"),
        # Where the scrape does not honour DCGM's labels, its namespace and pod are the exporter's own.
        _rule("gpu", "DCGM_FI_DEV_GPU_UTIL", used, also=',exported_pod=""'),
        _rule("gpu", "DCGM_FI_DEV_GPU_UTIL", used, prefix="exported_"),
        *(
            _rule("waiting", "inference_sequences", total.replace("STATE", state), also=f",{state}", name=name)
            for state, name in ((WAITING, ""), (RUNNING, RUNNING_METRIC))
        ),
    ]


def external_rules(spec: Spec) -> list[dict[str, Any]]:
    """What is known of a model, not of its pods; none without a forecast, because only one server may answer for such
    metrics in a cluster, and where KEDA is it does."""
    if spec.scaling.forecast == "none" or spec.scaling.autoscaler == "keda":
        return []
    series = f"model:{EXPECTED}"
    rule = {
        "seriesQuery": f'{series}{{namespace!="",model!=""}}',
        "resources": {"overrides": {"namespace": {"resource": "namespace"}}},
        "name": {"matches": f"^{series}$", "as": EXPECTED_METRIC},
        "metricsQuery": "max(<<.Series>>{<<.LabelMatchers>>})",
    }
    return [rule]


def _rule(metric: str, series: str, query: str, *, prefix: str = "", also: str = "", name: str = "") -> dict[str, Any]:
    labels = {prefix + resource: {"resource": resource} for resource in ("namespace", "pod")}
    present = ",".join(f'{label}!=""' for label in labels)
    return {
        "seriesQuery": f"{series}{{{present}{also}}}",
        "resources": {"overrides": labels},
        "name": {"matches": f"^{series}$", "as": name or METRICS[metric]},
        "metricsQuery": query,
    }
