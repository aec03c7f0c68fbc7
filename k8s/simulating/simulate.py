"""Simulates the autoscaler that a plan's manifests hold, and others to compare it with."""

from dataclasses import dataclass, replace
from typing import Literal

from marina.config.errors import InputError, listed
from marina.k8s.manifests import Plan, override_evidence, render_objects
from marina.k8s.monitoring import METRICS, forecast_lead_s, keda_query
from marina.k8s.simulating.hpa import Hpa, read_hpa
from marina.k8s.simulating.replay import PodProfile
from marina.k8s.simulating.simulation import Simulation, make_result
from marina.k8s.simulating.traffic import TrafficTrace, day_traffic, step_traffic

_COLD_START_S = 30.0
_HINT = "simulate without the patch that changes the autoscaler's metrics"
_READINGS = 4
# The peak of the default day, as a share of what `max_replicas` pods serve at their target.
_PEAK = 0.8


@dataclass(frozen=True)
class SimulationOptions:
    """The traffic to replay, values to use instead of measured ones, and what to compare with."""

    traffic: TrafficTrace | Literal["day"] | float = "day"
    """Recorded traffic, a working day, or a step to this multiple of what `min_replicas` pods serve at their target."""
    knee_rps: float | None = None
    cold_start_s: float | None = None
    node_s: float = 0
    up_window_s: int | None = None
    """Also simulate with this stabilization window for scaling up."""
    forecast: bool = False
    """Also simulate with the other `scaling.forecast`."""


def simulate(plan: Plan, options: SimulationOptions) -> Simulation:
    """Replays the traffic through the autoscaler that `marina manifests` would render."""
    given = (options.knee_rps, options.cold_start_s)
    if given != (None, None):
        plan = replace(plan, evidence=override_evidence(plan.evidence, *given))
    hpa = _autoscaler(plan)
    pod, assumed = _pod_profile(plan, options)
    traffic = _make_traffic(plan, pod, options)
    results = [make_result("as rendered", hpa, traffic, pod)]
    if options.up_window_s is not None:
        label = f"{options.up_window_s} s before more"
        results.append(make_result(label, hpa.with_up_window(options.up_window_s), traffic, pod))
    if options.forecast:
        other, label = ("none", "no forecast") if _forecasts(hpa) else ("weekly", "weekly forecast")
        results.append(make_result(label, _autoscaler(_with_forecast(plan, other)), traffic, pod))
    if any(_forecasts(result.hpa) for result in results) and not traffic.has_weeks:
        assumed.append("the past weeks: the same traffic at the same times")
    return Simulation(plan.name, traffic, pod, results, assumed, plan.spec.cost)


def _forecasts(hpa: Hpa) -> bool:
    return any(metric.is_forecast for metric in hpa.metrics)


def _with_forecast(plan: Plan, forecast: str) -> Plan:
    scaling = plan.spec.scaling
    if scaling.metric != "requests":
        text = f"`scaling.metric`: got `{scaling.metric}`, allowed with a forecast: `requests`"
        raise InputError(f"{plan.spec.file}: {text}", hint="simulate it without `--forecast`")
    changed = scaling.model_copy(update={"forecast": forecast})
    return replace(plan, spec=plan.spec.model_copy(update={"scaling": changed}))


def _autoscaler(plan: Plan) -> Hpa:
    where = f"{plan.spec.file}: `scaling"
    metric = plan.spec.scaling.metric
    if metric in ("queue_time", "waiting"):
        text = f"{where}.metric`: got `{metric}`, but nothing tells how long requests wait below the knee"
        raise InputError(text, hint="simulate `metric: requests`, which scales before requests wait")
    for manifest in (document for documents in render_objects(plan).values() for document in documents):
        if manifest["kind"] in ("HorizontalPodAutoscaler", "ScaledObject"):
            place = f"{plan.spec.file}: {manifest['kind']} {plan.name}"
            hpa = read_hpa(manifest, place, _HINT)
            known = ("cpu", METRICS[metric], keda_query(plan.spec))
            names = [metric.name for metric in hpa.metrics if not metric.is_forecast]
            if unknown := [name for name in names if name not in known]:
                raise InputError(f"{place}: nothing tells how {listed(unknown)} would change", hint=_HINT)
            return hpa
    raise InputError(f"{where}.autoscaler`: got `none`, so the number of pods never changes", hint="autoscaler: hpa")


def _pod_profile(plan: Plan, options: SimulationOptions) -> tuple[PodProfile, list[str]]:
    """What a pod can do, and what had to be assumed because it was never measured."""
    spec, assumed = plan.spec, []
    measured, target = plan.evidence.knee if plan.evidence else None, plan.target_rps_per_pod
    if measured is None and target is None:
        hint = f"marina calibrate {spec.file}, or --knee RPS"
        raise InputError("nothing was measured, so it is unknown how many requests/s a pod can serve", hint=hint)
    knee = measured.rps if measured else (target or 0) / spec.scaling.knee_share
    cold_start_s = plan.cold_start_s
    if measured is None:
        assumed.append(f"the knee: {knee:.4g} requests/s, `scaling.target` / {spec.scaling.knee_share:g}")
    if cold_start_s is None:
        cold_start_s = _COLD_START_S
        assumed.append(f"the cold start: {cold_start_s:g} s; `--cold-start` sets it")
    scrape_s = spec.kubernetes.monitoring.scrape_interval_s
    pod = PodProfile(
        knee_rps=knee,
        target_rps=target or knee * spec.scaling.knee_share,
        cold_start_s=cold_start_s,
        node_s=options.node_s,
        queue=spec.queue,
        metric=spec.scaling.metric,
        scrape_s=scrape_s,
        window_s=_READINGS * scrape_s,
        forecast_lead_s=forecast_lead_s(cold_start_s),
        propagation_s=spec.serving.drain_propagation_s,
    )
    return pod, assumed


def _make_traffic(plan: Plan, pod: PodProfile, options: SimulationOptions) -> TrafficTrace:
    if isinstance(options.traffic, TrafficTrace):
        return options.traffic
    scaling = plan.spec.scaling
    if options.traffic == "day":
        return day_traffic(float(f"{_PEAK * scaling.max_replicas * pod.target_rps:.3g}"))
    return step_traffic(float(f"{scaling.min_replicas * pod.target_rps:.4g}"), options.traffic)
