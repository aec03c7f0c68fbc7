"""Every metric that a rule, a panel or the adapter may use: its type, its labels and its exporter.

The pods' own metrics are on the supervisor's page `/metrics`; a scrape adds `TARGET_LABELS` to them. The others come
from the cluster: kube-state-metrics and the kubelet's cAdvisor with any usual Prometheus installation, DCGM with
NVIDIA's GPU operator, and the numbers of a Rollout with Argo's controller."""

from dataclasses import dataclass
from typing import Literal

from marina.config.spec import Spec
from marina.k8s.monitoring.expressions import FIRST, GAP

Kind = Literal["counter", "gauge", "histogram"]
Source = Literal["argo-rollouts", "cadvisor", "dcgm", "kube-state-metrics", "page", "rule"]

# A page must not use these labels: Prometheus would rename the page's own to `exported_…`.
TARGET_LABELS = frozenset({"container", "endpoint", "instance", "job", "namespace", "node", "pod", "service"})
_HISTOGRAM_PARTS = ("bucket", "count", "sum")


@dataclass(frozen=True)
class Series:
    """One metric as Prometheus stores it. `labels` are those that the exporter sets, without those that a scrape
    adds."""

    name: str
    kind: Kind
    source: Source
    labels: frozenset[str]
    only_on: str = ""
    """The worker's device, the handler or the feature that the metric needs; empty if it is always exported."""

    def has(self, label: str) -> bool:
        """Whether stored samples have this label."""
        added = TARGET_LABELS if self.source == "page" else frozenset()
        return label in self.labels | added or (label == "le" and self.kind == "histogram")


def _series(source: Source, kind: Kind, names: str, labels: str, *, only_on: str = "") -> list[Series]:
    return [Series(name, kind, source, frozenset(labels.split()), only_on) for name in names.split()]


_KUBE: Source = "kube-state-metrics"
_POD = "namespace pod uid container"
_ROLLOUT = "namespace name exported_namespace"
_HPA = "namespace horizontalpodautoscaler"
_CADVISOR = "namespace pod container id image name node cpu"
_DCGM = "gpu UUID device modelName Hostname namespace pod container exported_namespace exported_pod exported_container"

CATALOGUE: dict[str, Series] = {
    series.name: series
    for series in [
        *_series("page", "counter", "ts_inference_requests_total", "model_name model_version"),
        *_series("page", "counter", "ts_queue_latency_seconds_total", "model_name model_version"),
        *_series("page", "histogram", "inference_request_duration_seconds", "model version code"),
        *_series("page", "histogram", "inference_stage_duration_seconds", "model stage"),
        *_series("page", "histogram", "inference_batch_size", "model"),
        *_series("page", "counter", "inference_padding_rows_total", "model"),
        *_series("page", "counter", "inference_errors_total", "model kind"),
        *_series("page", "gauge", "inference_artifact_info", "model version precision compile artifact device torch"),
        *_series("page", "gauge", "inference_worker_cuda_bytes", "model pid", only_on="cuda"),
        *_series("page", "histogram", f"{FIRST} {GAP}", "model", only_on="text"),
        *_series("page", "counter", "inference_tokens_total", "model kind", only_on="text"),
        *_series("page", "counter", "inference_sequences_ended_total", "model reason", only_on="text"),
        *_series("page", "gauge", "inference_sequences", "model state", only_on="text"),
        *_series("page", "gauge", "inference_cached_tokens inference_cache_tokens", "model", only_on="text"),
        *_series("page", "counter", "inference_cache_requests_total", "model result", only_on="cache"),
        *_series("page", "counter", "inference_cache_failures_total", "model kind", only_on="cache"),
        *_series("page", "counter", "inference_routed_total", "model result", only_on="route"),
        *_series("page", "counter", "inference_conversations_total", "model result", only_on="sessions"),
        *_series("page", "gauge", "marina_ready marina_in_flight marina_queued marina_connections", "model"),
        *_series("page", "counter", "marina_connections_refused_total", "model"),
        *_series("page", "gauge", "marina_workers_declared marina_workers_ready", "model"),
        *_series("page", "gauge", "marina_start_duration_seconds marina_disk_free_bytes", "model"),
        *_series("page", "gauge", "marina_package_info", "model version sha256"),
        *_series("page", "counter", "marina_worker_restarts_total", "model worker"),
        *_series("page", "counter", "marina_worker_renewals_total marina_log_lines_dropped_total", "model"),
        *_series("page", "gauge", "marina_worker_resident_memory_bytes", "model worker"),
        *_series("page", "gauge", "marina_resident_memory_bytes", "process"),
        *_series(_KUBE, "counter", "kube_pod_container_status_restarts_total", _POD),
        *_series(_KUBE, "gauge", "kube_pod_container_resource_requests", f"{_POD} node resource unit"),
        *_series(_KUBE, "gauge", "kube_pod_container_resource_limits", f"{_POD} node resource unit"),
        *_series(_KUBE, "gauge", "kube_deployment_spec_replicas", "namespace deployment"),
        *_series(_KUBE, "gauge", "kube_deployment_status_replicas_available", "namespace deployment"),
        *_series("argo-rollouts", "gauge", "rollout_info_replicas_desired rollout_info_replicas_available", _ROLLOUT),
        *_series(_KUBE, "gauge", "kube_horizontalpodautoscaler_spec_max_replicas", _HPA),
        *_series(_KUBE, "gauge", "kube_horizontalpodautoscaler_spec_min_replicas", _HPA),
        *_series(_KUBE, "gauge", "kube_horizontalpodautoscaler_status_desired_replicas", _HPA),
        *_series(_KUBE, "gauge", "kube_horizontalpodautoscaler_status_condition", f"{_HPA} condition status"),
        *_series("cadvisor", "counter", "container_cpu_usage_seconds_total", _CADVISOR),
        *_series("cadvisor", "counter", "container_cpu_cfs_periods_total", _CADVISOR),
        *_series("cadvisor", "counter", "container_cpu_cfs_throttled_periods_total", _CADVISOR),
        *_series("cadvisor", "gauge", "container_memory_working_set_bytes", _CADVISOR),
        # Prometheus's own series about its alerts.
        *_series("rule", "gauge", "ALERTS", "alertname alertstate severity model namespace"),
        *_series("dcgm", "gauge", "DCGM_FI_DEV_FB_USED DCGM_FI_DEV_FB_FREE DCGM_FI_DEV_GPU_UTIL", _DCGM),
    ]
}


def find_series(stored: str) -> Series | None:
    """The metric that a stored series belongs to: `x_bucket` is a part of histogram `x`."""
    name, _, part = stored.rpartition("_")
    if part in _HISTOGRAM_PARTS and name in CATALOGUE and CATALOGUE[name].kind == "histogram":
        return CATALOGUE[name]
    series = CATALOGUE.get(stored)
    return series if series and series.kind != "histogram" else None


def page_series(spec: Spec) -> list[Series]:
    """The metrics on the page of this spec's pods."""
    features = {"", spec.worker_device, spec.model.handler}
    features |= {"cache"} if spec.serving.cache else set()
    features |= {"route"} if spec.text and spec.text.route else set()
    features |= {"sessions"} if spec.text and spec.text.sessions else set()
    return [series for series in CATALOGUE.values() if series.source == "page" and series.only_on in features]
