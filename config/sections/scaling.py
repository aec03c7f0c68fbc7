"""The section `scaling` of a spec: how many pods."""

from typing import Annotated, Literal

from pydantic import Field

from marina.config.sections.section import Count, Section, Url


class Scaling(Section):
    """How many pods."""

    autoscaler: Literal["hpa", "keda", "none"] = "hpa"
    """hpa: a HorizontalPodAutoscaler, which asks prometheus-adapter; keda: a ScaledObject, which asks Prometheus; none:
    `min_replicas` pods, always. Lands in the manifests."""
    metric: Literal["gpu", "queue_time", "requests", "waiting"] = "requests"
    """What shows that more pods are needed. requests: the requests/s of a pod; queue_time: the time that requests wait
    for a worker; gpu: the utilisation of the GPUs (needs NVIDIA's DCGM exporter); waiting, for a language model: the
    requests that wait for a slot, and the slots in use. Lands in the autoscaler and the adapter's values."""
    min_replicas: Count = 2
    """Fewest pods. Lands in the autoscaler."""
    max_replicas: Count = 10
    """Most pods. Lands in the autoscaler."""
    target_rps_per_pod: Annotated[float, Field(gt=0)] | Literal["auto"] = "auto"
    """Rate a pod should run at, requests/s; auto: the measured knee × `headroom`. Lands in the autoscaler."""
    headroom: Annotated[float, Field(gt=0, le=1)] = 0.7
    """Share of the knee that a pod should run at. Lands in the autoscaler."""
    target_queue_ms: Annotated[float, Field(gt=0)] = 20
    """For `metric: queue_time`: the mean time a request may wait for a worker, ms. Lands in the autoscaler."""
    target_waiting: Annotated[float, Field(gt=0)] = 1
    """For `metric: waiting`: how many requests may wait on each pod; of its slots, the share `headroom` may be in use.
    Lands in the autoscaler."""
    target_gpu_percent: Annotated[int, Field(ge=1, le=100)] = 70
    """For `metric: gpu`: mean utilisation a pod's GPUs should run at, percent. Lands in the autoscaler."""
    cpu_percent: Annotated[int, Field(ge=1, le=100)] | None = 80
    """A safety net beside `metric`: the CPU that the server should use at most, percent of its cpu request; null: no
    such limit, for a cluster without `metrics.k8s.io`. Lands in the autoscaler."""
    forecast: Literal["none", "weekly"] = "none"
    """weekly: pods start before traffic that comes at the same time every week: the autoscaler also looks at the median
    rate of the last three weeks, as far ahead as a cold start takes. For `metric: requests`. Lands in the autoscaler,
    the rules and the adapter's values."""
    prometheus: Url = "http://prometheus-operated.monitoring:9090"
    """For `autoscaler: keda`: the Prometheus it asks. Lands in the ScaledObject."""
