"""The values for prometheus-adapter's Helm chart: the metrics that a HorizontalPodAutoscaler can ask for, and their
queries.

A rule covers all models in a cluster, because the adapter inserts the namespace and the pods of each request; so it is
the same for every spec with the same scrape interval."""

from typing import Any
from urllib.parse import urlsplit

from marina.config.spec import Spec
from marina.k8s.monitoring.expressions import DURATION, EXPECTED, RUNNING, SHED, WAITING, rate_window

# The autoscaler's name for the metric of each pod, by `scaling.metric`.
METRICS = {
    "requests": "inference_requests_per_second",
    "queue_time": "inference_queue_seconds",
    "gpu": "gpu_utilization_percent",
    "waiting": "inference_waiting_requests",
}
# A pod's slots in use, which complement `waiting`: when no request waits, they show whether one pod fewer would do.
RUNNING_METRIC = "inference_running_requests"
# The forecast for all pods of a model together, with `scaling.forecast`.
EXPECTED_METRIC = "inference_expected_requests_per_second"


def adapter_values(spec: Spec) -> dict[str, Any]:
    """Values for the chart `prometheus-community/prometheus-adapter`. A cluster that already has an adapter only needs
    `rules.custom`."""
    address, external = urlsplit(spec.scaling.prometheus), external_rules(spec)
    return {
        "prometheus": {
            "url": f"{address.scheme}://{address.netloc.removesuffix(f':{address.port}')}",
            "port": address.port or (443 if address.scheme == "https" else 80),
            "path": address.path.rstrip("/"),
        },
        # The adapter's list of series is never older than the autoscaler's window; a series exists from the first
        # scrape.
        "metricsRelistInterval": rate_window(spec),
        "rules": {"default": False, "custom": adapter_rules(spec)} | ({"external": external} if external else {}),
    }


def adapter_rules(spec: Spec) -> list[dict[str, Any]]:
    """The rules for the metrics of each pod. A cluster without GPUs or language models has no series for some of them,
    which does no harm."""
    window = rate_window(spec)
    rates = f"sum(rate(<<.Series>>{{<<.LabelMatchers>>}}[{window}])) by (<<.GroupBy>>)"
    arrivals = rates.replace("<<.Series>>", "ts_inference_requests_total")
    shed = rates.replace("<<.Series>>", f"{DURATION}_count").replace("}", f",{SHED}}}")
    total = "sum(<<.Series>>{<<.LabelMatchers>>,STATE}) by (<<.GroupBy>>)"
    used = "avg(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)"
    return [
        _rule("requests", "ts_inference_requests_total", rates),
        _rule("queue_time", "ts_queue_latency_seconds_total", f"{rates} / clamp_min({arrivals} - {shed}, 1)"),
        # If the scrape does not honour DCGM's labels, `namespace` and `pod` are those of the exporter itself, and
        # DCGM's are renamed to `exported_namespace` and `exported_pod`.
        _rule("gpu", "DCGM_FI_DEV_GPU_UTIL", used, matchers=',exported_pod=""'),
        _rule("gpu", "DCGM_FI_DEV_GPU_UTIL", used, prefix="exported_"),
        *(
            _rule("waiting", "inference_sequences", total.replace("STATE", state), matchers=f",{state}", name=name)
            for state, name in ((WAITING, ""), (RUNNING, RUNNING_METRIC))
        ),
    ]


def external_rules(spec: Spec) -> list[dict[str, Any]]:
    """The rule for the forecast, which belongs to a model and not to its pods. Empty without a forecast and with KEDA,
    because only one server in a cluster can serve external metrics, and where KEDA is installed that is KEDA's."""
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


def _rule(
    metric: str, series: str, query: str, *, prefix: str = "", matchers: str = "", name: str = ""
) -> dict[str, Any]:
    labels = {prefix + resource: {"resource": resource} for resource in ("namespace", "pod")}
    present = ",".join(f'{label}!=""' for label in labels)
    return {
        "seriesQuery": f"{series}{{{present}{matchers}}}",
        "resources": {"overrides": labels},
        "name": {"matches": f"^{series}$", "as": name or METRICS[metric]},
        "metricsQuery": query,
    }
