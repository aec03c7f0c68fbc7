"""The dashboard's panels about pods, and about what runs in them."""

from __future__ import annotations

from typing import Any

from config.spec import Spec
from k8s.monitoring.expressions import Queries
from k8s.monitoring.panels import Panel, Query

_INSTANT_TABLE: dict[str, Any] = {"form": "table", "instant": True}


def pod_panels(spec: Spec, queries: Queries, target: float | None) -> list[Panel]:
    """How many pods there are, and how each of them does."""
    pods = [
        Panel(
            "Requests per pod",
            "What the autoscaler scales by; the line is its target.",
            "reqps",
            (Query(queries.arrivals("pod"), "{{pod}}"),),
            limits=(target,) if target else (),
        ),
        Panel(
            "Replicas",
            "How many pods are wanted, how many are there, and the autoscaler's limits.",
            "none",
            _replicas(queries),
        ),
        Panel(
            "Workers",
            "Workers that are ready, of those the spec asks for.",
            "none",
            tuple(
                Query(f"sum by (namespace) ({queries.of(f'marina_workers_{name}')})", name)
                for name in ("declared", "ready")
            ),
        ),
        Panel(
            "CPU",
            "Cores in use as a share of the request, and the share of time in which the limit held a pod back.",
            "percentunit",
            (
                Query(queries.cpu_share(), "{{pod}} used"),
                Query(queries.throttled_share(), "{{pod}} throttled"),
            ),
            limits=(spec.scaling.cpu_percent / 100,) if spec.scaling.cpu_percent else (),
        ),
        Panel("Memory", "The server's container.", "bytes", _memory(queries)),
        Panel(
            "Memory by process",
            "Resident memory: workers, TorchServe's Java, the supervisor.",
            "bytes",
            _processes(queries),
        ),
        Panel(
            "Restarts",
            "Workers that died or were renewed for their memory, and containers, in ten minutes.",
            "none",
            _restarts(queries),
        ),
        Panel(
            "Start",
            "Time from a pod's start to its first readiness.",
            "s",
            (Query(queries.of("marina_start_duration_seconds"), "{{pod}}"),),
        ),
    ]
    if spec.worker_device == "cuda":
        pods.append(_reserved(queries))
    return pods + (_gpus(queries) if spec.serving.device == "cuda" else [])


def _replicas(queries: Queries) -> tuple[Query, ...]:
    names = {"spec_replicas": "wanted", "status_replicas_available": "available"}
    limits = {"status_desired": "autoscaler wants", "spec_min": "least", "spec_max": "most"}
    return (
        *(Query(queries.of_deployment(f"kube_deployment_{name}"), text) for name, text in names.items()),
        *(
            Query(queries.of_autoscaler(f"kube_horizontalpodautoscaler_{name}_replicas"), text)
            for name, text in limits.items()
        ),
    )


def _restarts(queries: Queries) -> tuple[Query, ...]:
    workers = {name: queries.of(f"marina_worker_{name}_total") for name in ("restarts", "recycles")}
    containers = queries.of_pods("kube_pod_container_status_restarts_total")
    return (
        *(Query(f"sum by (pod) (increase({series}[10m]))", f"{{{{pod}}}} {name}") for name, series in workers.items()),
        Query(f"sum by (pod) (increase({containers}[10m]))", "{{pod}} containers"),
    )


def _memory(queries: Queries) -> tuple[Query, ...]:
    limit = queries.of_server("kube_pod_container_resource_limits", 'resource="memory"')
    used = queries.of_server("container_memory_working_set_bytes")
    return Query(f"sum by (pod) ({used})", "{{pod}}"), Query(f"max by (namespace) ({limit})", "limit")


def _processes(queries: Queries) -> tuple[Query, ...]:
    workers = queries.of("marina_worker_resident_memory_bytes")
    others = queries.of_pods("marina_resident_memory_bytes")
    return Query(workers, "{{pod}} worker {{worker}}"), Query(others, "{{pod}} {{process}}")


def _reserved(queries: Queries) -> Panel:
    reserved = (Query(f"sum by (pod) ({queries.of('inference_worker_cuda_bytes')})", "{{pod}}"),)
    return Panel("GPU memory reserved", "What the workers' torch has reserved.", "bytes", reserved)


def _gpus(queries: Queries) -> list[Panel]:
    full = (Query(queries.gpu_memory_share(), "{{pod}}"),)
    busy = (Query(queries.gpu("DCGM_FI_DEV_GPU_UTIL"), "{{pod}}"),)
    return [
        Panel("GPU memory in use", "Share of the device's memory that is in use (DCGM).", "percentunit", full, most=1),
        Panel("GPU utilisation", "Share of time in which the GPU did anything (DCGM).", "percent", busy),
    ]


def what_runs(queries: Queries) -> list[Panel]:
    """Which artifacts and packages, by how many pods."""
    by = "model, version, precision, compile, artifact, device, torch"
    artifacts = f"count by ({by}) ({queries.of('inference_artifact_info')})"
    packages = f"count by (model, version, sha256) ({queries.of('marina_package_info')})"
    text = "What the workers loaded; where `artifact` is not what `compile` says, it was compiled again on the node."
    return [
        Panel("Artifacts", text, "none", (Query(artifacts, "", **_INSTANT_TABLE),), kind="table", width=12),
        Panel(
            "Packages",
            "The MARs that pods serve.",
            "none",
            (Query(packages, "", **_INSTANT_TABLE),),
            kind="table",
            width=12,
        ),
    ]
