"""Alerts about the state of pods, workers and the autoscaler. Alerts about the objective are in `rules`.

Every alert has its own heading in docs/runbook.md, which its `runbook_url` links to."""

from dataclasses import dataclass
from typing import Any

from marina.config.machine import LOW_TMP_BYTES
from marina.config.spec import Spec
from marina.k8s.monitoring.expressions import Queries

SHED_SHARE = 0.01
# The autoscaler tolerates a tenth over its target, and the alert fires a little above that. A pod cannot use more than
# its whole request, so the limit is at most slightly below it.
AUTOSCALER_TOLERANCE, TOLERANCE_MARGIN, CPU_AT_MOST = 0.1, 0.02, 0.98
MEMORY_SHARE = 0.9
GPU_MEMORY_SHARE = 0.95
GPU_GROWTH = 1.1
RESTARTS = 3


@dataclass(frozen=True)
class Alert:
    """One alert. It fires once `expr` has had results for the duration `for_`."""

    name: str
    expr: str
    summary: str
    for_: str = ""
    severity: str = "ticket"

    def rule(self, spec: Spec) -> dict[str, Any]:
        """The rule in Prometheus's format."""
        return {
            "alert": self.name,
            "expr": self.expr,
            **({"for": self.for_} if self.for_ else {}),
            "labels": {"severity": self.severity, "model": spec.name},
            "annotations": {
                "summary": f"{spec.name}: {self.summary}",
                "runbook_url": f"{spec.kubernetes.monitoring.runbook_url}#{self.name.lower()}",
            },
        }


def state_alerts(spec: Spec, queries: Queries) -> list[Alert]:
    """The alerts that do not depend on the objective."""
    scaled = spec.scaling.autoscaler != "none"
    return [
        *_pod_alerts(spec, queries),
        *_restart_alerts(queries),
        *_capacity_alerts(spec, queries),
        # Not with vLLM, which reserves all the GPU memory that it may use when it starts.
        *(_gpu_alerts(queries) if spec.worker_device == "cuda" else []),
        *(_autoscaler_alerts(queries) if scaled else []),
    ]


def _pod_alerts(spec: Spec, queries: Queries) -> list[Alert]:
    ready, packages = queries.of("marina_ready"), queries.of("marina_package_info")
    wanted, available = queries.wanted(), queries.available()
    # A container that fails at its start can be gone for five minutes between two attempts; its last word stands.
    last = f"sum by (namespace) (last_over_time({ready}[10m]))"
    none = f"(sum by (namespace) ({ready}) or {last}) == 0"
    start_min = _start_min(spec)
    return [
        Alert("MarinaNoData", f"absent({ready})", "Prometheus reads no metrics from any of its pods", "3m", "page"),
        Alert("MarinaNoPodReady", none, "none of its pods is ready", "3m", "page"),
        Alert("MarinaPodNotReady", f"{ready} == 0", _pod("is not ready"), for_=f"{start_min}m"),
        Alert(
            "MarinaReplicasMissing",
            f"{available} < {wanted}",
            f"{{{{ $value }}}} pods are available, fewer than {queries.workload.shown}",
            for_=f"{start_min}m",
        ),
        Alert(
            "MarinaPodsUnseen",
            f"count by (namespace) ({ready}) < {available}",
            "Prometheus reads metrics from {{ $value }} pods, fewer than are available",
            for_="10m",
        ),
        Alert(
            "MarinaPackagesMixed",
            f"count by (namespace) (count by (namespace, sha256) ({packages})) > 1",
            "pods serve {{ $value }} different packages",
            for_="1h",
        ),
    ]


def _start_min(spec: Spec) -> int:
    """Minutes that a pod may take until it serves, including the time for a new node and for pulling the image."""
    return -(-spec.serving.startup_timeout_s // 60) + 10


def _restart_alerts(queries: Queries) -> list[Alert]:
    containers = queries.of_pods("kube_pod_container_status_restarts_total")
    # A renewed worker keeps its process, so these are only the workers that died.
    died = queries.of("marina_worker_restarts_total")
    return [
        Alert(
            "MarinaContainerRestarts",
            f"round(max by (namespace, pod, container) (increase({containers}[1h]))) >= {RESTARTS}",
            "a container of " + _pod("restarted {{ $value }} times in an hour"),
        ),
        Alert(
            "MarinaWorkerRestarts",
            f"round(sum by (namespace, pod) (increase({died}[1h]))) >= {RESTARTS}",
            _pod("lost {{ $value }} workers in an hour"),
        ),
    ]


def _capacity_alerts(spec: Spec, queries: Queries) -> list[Alert]:
    shed = queries.recorded("inference_shed:ratio_rate5m")
    target = (spec.scaling.cpu_percent or 100) / 100
    cpu = min(CPU_AT_MOST, target * (1 + AUTOSCALER_TOLERANCE + TOLERANCE_MARGIN))
    # New pods only help once they were requested, got a node, have started, and clients have found them.
    scaled_min = 2 * _start_min(spec)
    return [
        Alert(
            "MarinaRequestsShed", f"{shed} > {SHED_SHARE}", f"{_PERCENT} of requests are refused with 503", for_="5m"
        ),
        Alert(
            "MarinaCpuHigh",
            f"{queries.cpu_share()} > {cpu:g}",
            _pod(f"uses {_PERCENT} of its cpu request"),
            for_=f"{scaled_min}m",
        ),
        Alert(
            "MarinaMemoryNearLimit",
            f"{queries.memory_share()} > {MEMORY_SHARE}",
            _pod(f"uses {_PERCENT} of its memory limit"),
            for_="10m",
        ),
        Alert(
            "MarinaDiskNearlyFull",
            f"{queries.of('marina_disk_free_bytes')} < {LOW_TMP_BYTES}",
            _pod("has {{ $value | humanize }}B left for temporary files"),
            for_="5m",
        ),
    ]


def _gpu_alerts(queries: Queries) -> list[Alert]:
    """`GpuMemoryGrows` needs only the pods' own metrics; `GpuMemoryNearlyFull` needs DCGM. Torch keeps the memory that
    it has reserved, so a flat line is normal and one that rises for hours is not. A pod that is younger than the
    earlier window is not judged: before its first requests it reserves less."""
    series = queries.of("inference_worker_cuda_bytes")
    reserved, grown_up = f"sum by (namespace, pod) ({series})", f"sum by (namespace, pod) ({series} offset 4h)"
    now, before = f"min_over_time({reserved}[1h:5m])", f"max_over_time({reserved}[1h:5m] offset 3h)"
    full = f"{queries.gpu_memory_share()} > {GPU_MEMORY_SHARE}"
    return [
        Alert(
            "MarinaGpuMemoryGrows",
            f"{now} / {before} > {GPU_GROWTH} and {grown_up}",
            _pod("reserves more GPU memory than three hours ago"),
        ),
        Alert("MarinaGpuMemoryNearlyFull", full, _pod(f"uses {_PERCENT} of a GPU's memory"), for_="15m"),
    ]


def _autoscaler_alerts(queries: Queries) -> list[Alert]:
    wanted, most, least = (
        f"max by (namespace) ({queries.of_autoscaler(f'kube_horizontalpodautoscaler_{name}_replicas')})"
        for name in ("status_desired", "spec_max", "spec_min")
    )
    idle = queries.of_autoscaler(
        "kube_horizontalpodautoscaler_status_condition", 'condition="ScalingActive"', 'status="false"'
    )
    # An autoscaler whose bounds are equal is always at its maximum. A chart's values may change them.
    at_max = f"{wanted} >= {most} and {most} > {least}"
    text = "the autoscaler wants {{ $value }} pods, its maximum"
    # Scaled to 0, an autoscaler is switched off, which the same condition tells.
    off = f"{queries.wanted()} == 0"
    blind = f"max by (namespace) ({idle}) == 1 unless on (namespace) {off}"
    return [
        Alert("MarinaAutoscalerBlind", blind, _BLIND, for_="10m"),
        Alert("MarinaAutoscalerAtMax", at_max, text, for_="15m"),
    ]


_BLIND = "the autoscaler cannot read one of its metrics: until it can, it removes no pods and may not add any"
_PERCENT = "{{ $value | humanizePercentage }}"


def _pod(text: str) -> str:
    return f"pod {{{{ $labels.pod }}}} {text}"
