"""The dashboard's panels about pods, and about the artifacts and packages that they run."""

from marina.config.spec import Spec
from marina.k8s.monitoring.expressions import Queries
from marina.k8s.monitoring.panels import Panel


def pod_panels(spec: Spec, queries: Queries, target: float | None) -> list[Panel]:
    """Panels about the number of pods and the state of each; `target` is the rate per pod that the autoscaler aims at,
    or None if it scales by another metric or the rate is not known."""
    arrivals = "Requests that arrive at each pod, including shed ones"
    pods = [
        Panel(
            "Requests per pod",
            f"{arrivals}; the line is the autoscaler's target." if target else f"{arrivals}.",
            "reqps",
            {"{{pod}}": queries.arrivals("pod")},
            limits=(target,) if target else (),
        ),
        Panel(
            "Replicas",
            "How many pods are wanted and available, how many the autoscaler wants, and its limits.",
            "none",
            _replicas(queries),
        ),
        Panel(
            "Workers",
            "Workers that should run, and workers that are ready.",
            "none",
            {name: f"sum by (namespace) ({queries.of(f'marina_workers_{name}')})" for name in ("declared", "ready")},
        ),
        Panel(
            "CPU",
            "Cores in use as a share of the cpu request, and the share of time in which the cpu limit throttled a pod.",
            "percentunit",
            {"{{pod}} used": queries.cpu_share(), "{{pod}} throttled": queries.throttled_share()},
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
            {"{{pod}}": queries.of("marina_start_duration_seconds")},
        ),
    ]
    if spec.worker_device == "cuda":
        pods.append(_reserved(queries))
    return pods + (_gpus(queries) if spec.serving.device == "cuda" else [])


def _replicas(queries: Queries) -> dict[str, str]:
    limits = {"status_desired": "autoscaler wants", "spec_min": "minimum", "spec_max": "maximum"}
    series = {
        text: queries.of_autoscaler(f"kube_horizontalpodautoscaler_{name}_replicas") for name, text in limits.items()
    }
    counts = {"wanted": queries.wanted(), "available": queries.available()}
    return counts | {text: f"max by (namespace) ({selector})" for text, selector in series.items()}


def _restarts(queries: Queries) -> dict[str, str]:
    workers = {name: queries.of(f"marina_worker_{name}_total") for name in ("restarts", "renewals")}
    containers = queries.of_pods("kube_pod_container_status_restarts_total")
    return {
        **{f"{{{{pod}}}} {name}": f"sum by (pod) (increase({series}[10m]))" for name, series in workers.items()},
        "{{pod}} {{container}}": f"max by (pod, container) (increase({containers}[10m]))",
    }


def _memory(queries: Queries) -> dict[str, str]:
    limit = queries.of_server("kube_pod_container_resource_limits", 'resource="memory"')
    used = queries.of_server("container_memory_working_set_bytes")
    return {"{{pod}}": f"sum by (pod) ({used})", "limit": f"max by (namespace) ({limit})"}


def _processes(queries: Queries) -> dict[str, str]:
    workers = queries.of("marina_worker_resident_memory_bytes")
    others = queries.of_pods("marina_resident_memory_bytes")
    return {"{{pod}} worker {{worker}}": workers, "{{pod}} {{process}}": others}


def _reserved(queries: Queries) -> Panel:
    reserved = {"{{pod}}": f"sum by (pod) ({queries.of('inference_worker_cuda_bytes')})"}
    return Panel("GPU memory reserved", "GPU memory that torch has reserved in the workers.", "bytes", reserved)


def _gpus(queries: Queries) -> list[Panel]:
    full, busy = {"{{pod}}": queries.gpu_memory_share()}, {"{{pod}}": queries.gpu_use()}
    text = "Share of the memory in use, by any process, of the fullest GPU of each pod (DCGM)."
    return [
        Panel("GPU memory in use", text, "percentunit", full, maximum=1),
        Panel("GPU utilisation", "Share of time in which the GPU was busy (DCGM).", "percent", busy),
    ]


def package_panels(queries: Queries) -> list[Panel]:
    """Tables of the artifacts and packages in use, with the number of pods."""
    by = "model, version, precision, compile, artifact, device, torch"
    artifacts = f"count by ({by}) ({queries.of('inference_artifact_info')})"
    packages = f"count by (model, version, sha256) ({queries.of('marina_package_info')})"
    text = "What the workers loaded. If `artifact` differs from `compile`, the model was compiled again on the node."
    return [
        Panel("Artifacts", text, "none", {"": artifacts}, kind="table", width=12),
        Panel("Packages", "The packages that pods serve.", "none", {"": packages}, kind="table", width=12),
    ]
