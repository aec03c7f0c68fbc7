"""The section `scaling` of a spec: how many pods."""

from typing import Annotated, Literal

from pydantic import Field

from marina.config.sections.section import Count, Section, Url, matching

_KNEE_SHARE = 0.7
_QUEUE_MS, _WAITING, _GPU_PERCENT = 20.0, 1.0, 70.0


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
    target: (
        Annotated[float, Field(gt=0)]
        | Annotated[str, matching(r"^(auto|[1-9][0-9]?%)$", "`auto`, a number above 0, or a share such as `50%`")]
    ) = "auto"
    """What a pod should run at, in the unit of `metric`: requests/s; the mean time that a request waits for a worker,
    ms; GPU utilisation, percent; or waiting requests. For `requests` also a share of the measured knee, such as `50%`.
    auto: 70% of the knee, 20 ms, 70 percent, or 1 request. Lands in the autoscaler."""
    cpu_percent: Annotated[int, Field(ge=1, le=100)] | None = 80
    """A safety net beside `metric`: the CPU that the server should use at most, percent of its cpu request; null: no
    such limit, for a cluster without `metrics.k8s.io`. Lands in the autoscaler."""
    scale_down_window_s: Annotated[int, Field(ge=0, le=3600)] | Literal["auto"] = "auto"
    """How long fewer pods must be enough before any is removed, s; auto: ten cold starts, from 300 s to an hour. Lands
    in the autoscaler."""
    forecast: Literal["none", "weekly"] = "none"
    """weekly: pods start before traffic that comes at the same time every week: the autoscaler also looks at the median
    rate of the last three weeks, as far ahead as a cold start takes. For `metric: requests`. Lands in the autoscaler,
    the rules and the adapter's values."""
    prometheus: Url = "http://prometheus-operated.monitoring:9090"
    """For `autoscaler: keda`: the Prometheus it asks. Lands in the ScaledObject."""

    @property
    def knee_share(self) -> float:
        """The share of the knee, or of a language model's slots, that a pod should run at."""
        target = self.target
        return int(target[:-1]) / 100 if isinstance(target, str) and target != "auto" else _KNEE_SHARE

    @property
    def target_rps(self) -> float | None:
        """The requests/s that each pod should get, if the spec says it; None if it is a share of the knee."""
        return self.target if self.metric == "requests" and not isinstance(self.target, str) else None

    @property
    def stated_target(self) -> float | None:
        """The target in the metric's base unit; None for requests/s that depend on the knee."""
        given = None if isinstance(self.target, str) else self.target
        if self.metric == "queue_time":
            return (given or _QUEUE_MS) / 1000
        return given or {"gpu": _GPU_PERCENT, "requests": None, "waiting": _WAITING}[self.metric]
