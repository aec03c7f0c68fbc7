"""The dashboard's panels about pods, and about the artifacts and packages that they run."""

from __future__ import annotations

from typing import Any

from config.spec import Spec
from k8s.monitoring.expressions import Queries
from k8s.monitoring.panels import Panel, Query

_INSTANT_TABLE: dict[str, Any] = {"result_format": "table", "instant": True}


def pod_panels(spec: Spec, queries: Queries, target: float | None) -> list[Panel]:
    """Panels about the number of pods and the state of each; `target` is the rate per pod that the autoscaler aims at,
    or None if it scales by another metric or the rate is not known."""
    arrivals = "Requests that arrive at each pod, including shed ones"
    pods = [
        Panel(
            "Requests per pod",
            f"{arrivals}; the line is the autoscaler's target." if target else f"{arrivals}.",
            "reqps",
            (Query(queries.arrivals("pod"), "{{pod}}"),),
            limits=(target,) if target else (),
        ),
        Panel(
            "Replicas",
            "How many pods the Deployment wants and has available, what the autoscaler wants, and its limits.",
            "none",
            _replicas(queries),
        ),
        Panel(
            "Workers",
            "Workers that should run, and workers that are ready.",
            "none",
            tuple(
                Query(f"sum by (namespace) ({queries.of(f'marina_workers_{name}')})", name)
                for name in ("declared", "ready")
            ),
        ),
        Panel(
            "CPU",
            "Cores in use as a share of the cpu request, and the share of time in which the cpu limit throttled a pod.",
            "percentunit",
            (
                Query(queries.cpu_share(), "{{pod}} used"),
                Query(queries.throttled_share(), "{{pod}} throttled"),
            ),
            limits=(spec.scaling.cpu_percent / 100,) if spec.scaling.cpu_percent else (),
        ),
        Panel("Memory", "Memory of the server's container, and its limit.", "bytes", _memory(queries)),
        Panel(
            "Memory by process",
            "Resident memory of the workers, TorchServe's Java and the supervisor.",
            "bytes",
            _processes(queries),
        ),
        Panel(
            "Restarts",
            "Workers that ended, workers replaced because of their memory, and container restarts, in ten minutes.",
            "none",
            _restarts(queries),
        ),
        Panel(
            "Start",
            "Time from a pod's start until it was first ready.",
            "s",
            (Query(queries.of("marina_start_duration_seconds"), "{{pod}}"),),
        ),
    ]
    if spec.worker_device == "cuda":
        pods.append(_reserved(queries))
    return pods + (_gpus(queries) if spec.serving.device == "cuda" else [])


def _replicas(queries: Queries) -> tuple[Query, ...]:
    names = {"spec_replicas": "wanted", "status_replicas_available": "available"}
    limits = {"status_desired": "autoscaler wants", "spec_min": "minimum", "spec_max": "maximum"}
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
    return Panel("GPU memory reserved", "GPU memory that torch has reserved in the workers.", "bytes", reserved)


def _gpus(queries: Queries) -> list[Panel]:
    full = (Query(queries.gpu_memory_share(), "{{pod}}"),)
    busy = (Query(queries.gpu_use(), "{{pod}}"),)
    return [
        Panel(
            "GPU memory in use",
            "Share of the device's memory in use, by any process (DCGM).",
            "percentunit",
            full,
            maximum=1,
        ),
        Panel("GPU utilisation", "Share of time in which the GPU was busy (DCGM).", "percent", busy),
    ]


def package_panels(queries: Queries) -> list[Panel]:
    """Tables of the artifacts and packages in use, with the number of pods."""
    by = "model, version, precision, compile, artifact, device, torch"
    artifacts = f"count by ({by}) ({queries.of('inference_artifact_info')})"
    packages = f"count by (model, version, sha256) ({queries.of('marina_package_info')})"
    text = "What the workers loaded. If `artifact` differs from `compile`, the model was compiled again on the node."
    return [
        Panel("Artifacts", text, "none", (Query(artifacts, "", **_INSTANT_TABLE),), kind="table", width=12),
        Panel(
            "Packages",
            "The packages that pods serve.",
            "none",
            (Query(packages, "", **_INSTANT_TABLE),),
            kind="table",
            width=12,
        ),
    ]
