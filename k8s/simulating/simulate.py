"""From a plan and a trace to a simulation: the manifests' own autoscaler, and beside it what one would compare with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from config.errors import InputError
from k8s.manifests import Plan, override_evidence, render_objects
from k8s.monitoring import forecast_lead_s
from k8s.simulating.hpa import Hpa, read_hpa
from k8s.simulating.outcome import Outcome, Simulation, make_outcome
from k8s.simulating.traffic import Trace, day_trace, step_trace
from k8s.simulating.world import Service, replay

_COLD_START_S = 30.0
_READINGS = 4
# Of what all pods hold at their target: a day's peak that leaves the autoscaler some room.
_PEAK = 0.8


@dataclass(frozen=True)
class Supposed:
    """What to replay, and what is taken for true beside what was measured."""

    trace: Trace | Literal["day"] | float = "day"
    """Recorded traffic, a working day, or a step to so many times what the least pods should run at."""
    knee_rps: float | None = None
    cold_start_s: float | None = None
    node_s: float = 0
    up_window_s: int | None = None
    """Another window before more pods, to compare with."""
    forecast: bool = False
    """Whether to compare with the other `scaling.forecast`."""


def simulate(plan: Plan, supposed: Supposed) -> Simulation:
    """Replays the traffic through the autoscaler that `marina manifests` would render."""
    stated = (supposed.knee_rps, supposed.cold_start_s)
    if stated != (None, None):
        plan = replace(plan, evidence=override_evidence(plan.evidence, *stated))
    hpa = _autoscaler(plan)
    service, assumed = _service(plan, supposed)
    trace = _trace(plan, service, supposed)
    outcomes = [_outcome("as rendered", hpa, trace, service)]
    if supposed.up_window_s is not None:
        label = f"{supposed.up_window_s} s before more"
        outcomes.append(_outcome(label, hpa.with_up_window(supposed.up_window_s), trace, service))
    if supposed.forecast:
        other, label = ("none", "no forecast") if _forecasts(hpa) else ("weekly", "weekly forecast")
        outcomes.append(_outcome(label, _autoscaler(_with_forecast(plan, other)), trace, service))
    if any(_forecasts(outcome.hpa) for outcome in outcomes) and not trace.has_weeks:
        assumed.append("the weeks before: the same traffic at the same times")
    return Simulation(plan.name, trace, service, outcomes, assumed, plan.spec.cost)


def _forecasts(hpa: Hpa) -> bool:
    return any(metric.forecasts for metric in hpa.metrics)


def _with_forecast(plan: Plan, forecast: str) -> Plan:
    scaling = plan.spec.scaling
    if scaling.metric != "requests":
        text = f"`scaling.metric`: got `{scaling.metric}`, allowed with a forecast: `requests`"
        raise InputError(f"{plan.spec.file}: {text}", hint="simulate it without `--forecast`")
    changed = scaling.model_copy(update={"forecast": forecast})
    return replace(plan, spec=plan.spec.model_copy(update={"scaling": changed}))


def _outcome(label: str, hpa: Hpa, trace: Trace, service: Service) -> Outcome:
    return make_outcome(label, hpa, trace, service, replay(trace, hpa, service))


def _autoscaler(plan: Plan) -> Hpa:
    where = f"{plan.spec.file}: `scaling"
    metric = plan.spec.scaling.metric
    if metric in ("queue_time", "waiting"):
        text = f"{where}.metric`: got `{metric}`, but how long requests wait below the knee is not known"
        raise InputError(text, hint="simulate `metric: requests`, which scales before requests wait")
    for manifest in (document for documents in render_objects(plan).values() for document in documents):
        if manifest["kind"] in ("HorizontalPodAutoscaler", "ScaledObject"):
            return read_hpa(manifest)
    raise InputError(f"{where}.autoscaler`: got `none`, so the number of pods never changes", hint="autoscaler: hpa")


def _service(plan: Plan, supposed: Supposed) -> tuple[Service, list[str]]:
    """What a pod does, and what of that was never measured."""
    spec, assumed = plan.spec, []
    measured, target = plan.evidence.knee if plan.evidence else None, plan.target_rps_per_pod
    if measured is None and target is None:
        hint = f"marina calibrate {spec.file}, or --knee RPS"
        raise InputError("nothing was measured, so how many requests/s a pod can hold is not known", hint=hint)
    knee = measured.rps if measured else (target or 0) / spec.scaling.headroom
    cold_start_s = plan.cold_start_s
    if measured is None:
        assumed.append(f"the knee: {knee:.4g} requests/s, `scaling.target_rps_per_pod` / `scaling.headroom`")
    if cold_start_s is None:
        cold_start_s = _COLD_START_S
        assumed.append(f"the cold start: {cold_start_s:g} s; `--cold-start` says another")
    scrape_s = spec.kubernetes.monitoring.scrape_interval_s
    service = Service(
        knee_rps=knee,
        target_rps=target or knee * spec.scaling.headroom,
        cold_start_s=cold_start_s,
        node_s=supposed.node_s,
        queue=spec.serving.queue,
        metric=spec.scaling.metric,
        scrape_s=scrape_s,
        window_s=_READINGS * scrape_s,
        forecast_lead_s=forecast_lead_s(cold_start_s),
        propagation_s=spec.serving.drain_propagation_s,
    )
    return service, assumed


def _trace(plan: Plan, service: Service, supposed: Supposed) -> Trace:
    if isinstance(supposed.trace, Trace):
        return supposed.trace
    scaling = plan.spec.scaling
    if supposed.trace == "day":
        return day_trace(float(f"{_PEAK * scaling.max_replicas * service.target_rps:.3g}"))
    return step_trace(float(f"{scaling.min_replicas * service.target_rps:.4g}"), supposed.trace)
