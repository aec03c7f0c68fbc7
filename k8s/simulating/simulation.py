"""Simulates the autoscaler that a plan's manifests hold, and others to compare it with; the results as a table and as a
record."""

from dataclasses import dataclass, replace
from typing import Any, Literal

from marina.config.errors import InputError, listed
from marina.config.sections import Cost
from marina.k8s.manifests import Plan, render_objects
from marina.k8s.monitoring import METRICS, forecast_lead_s, keda_query
from marina.k8s.simulating.hpa import Hpa, read_hpa
from marina.k8s.simulating.replay import PodProfile, Replay, replay
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
    up_window_s: int | None = None
    """Also simulate with this stabilization window for scaling up."""
    forecast: bool = False
    """Also simulate with the other `scaling.forecast`."""


@dataclass(frozen=True)
class AutoscalerResult:
    """What the traffic did under one autoscaler."""

    label: str
    hpa: Hpa
    replay: Replay
    asked_s: int | None = None
    """After a step: seconds until more pods were asked for; None if never."""
    enough_s: int | None = None
    """After a step: seconds until as many pods were ready as the target needs; None if never."""
    cost_per_10k: float | None = None
    """The price of 10,000 answered requests, the pods' idle time included; None without a price of a pod."""

    @property
    def missed(self) -> float:
        """Requests that missed the objective."""
        return self.replay.late + self.replay.shed

    @property
    def missed_share(self) -> float:
        """The share of all requests that missed the objective."""
        return self.missed / max(1e-9, self.replay.requests)

    @property
    def pod_hours(self) -> float:
        """How long pods existed, all added up."""
        return self.replay.pod_seconds / 3600

    @property
    def most_pods(self) -> int:
        return max(moment.wanted for moment in self.replay.moments)

    def to_data(self) -> dict[str, Any]:
        """Its part of the record that `--json` prints."""
        run = self.replay
        data = {
            "label": self.label,
            "scale_up_window_s": self.hpa.up.window_s,
            "requests": round(run.requests),
            "beyond_objective": round(self.missed),
            "shed": round(run.shed),
            "beyond_share": round(self.missed_share, 6),
            "short_s": run.overloaded_s,
            "pods_most": self.most_pods,
            "pod_hours": round(self.pod_hours, 3),
            "decisions": [{"at_s": at, "from": before, "to": after} for at, before, after in run.decisions],
        }
        given = {"asked_after_s": self.asked_s, "enough_after_s": self.enough_s, "cost_per_10k": self.cost_per_10k}
        return data | {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class Simulation:
    """The traffic, and the results of one autoscaler or more."""

    name: str
    traffic: TrafficTrace
    pod: PodProfile
    results: list[AutoscalerResult]
    assumed: list[str]
    """What was assumed because it was not measured."""
    cost: Cost | None = None

    def to_data(self) -> dict[str, Any]:
        """The record that `--json` prints."""
        pod, currency = self.pod, {"currency": self.cost.currency} if self.cost else {}
        return {
            "schema": "marina.simulation/1",
            "name": self.name,
            "trace": self.traffic.name,
            "seconds": len(self.traffic.rates),
            "knee_rps": pod.knee_rps,
            "target_rps_per_pod": pod.target_rps,
            "cold_start_s": pod.cold_start_s,
            "assumed": self.assumed,
            "outcomes": [result.to_data() | currency for result in self.results],
        }

    def to_text(self) -> str:
        """The table, under a line about the traffic and one about the pods."""
        rows = self.rows()
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = [f"{self.name}: {self.traffic.name}, {duration(len(self.traffic.rates))}", f"  {self.pod}"]
        for label, *values in rows:
            cells = (f"{value:>{width}}" for value, width in zip(values, widths[1:], strict=True))
            lines.append(f"  {label:<{widths[0]}}  {'  '.join(cells)}".rstrip())
        return "\n".join(lines)

    def rows(self) -> list[list[str]]:
        """The table: each row has a label and a value for each autoscaler."""
        results = self.results
        rows = [["", *(result.label for result in results)]]
        if self.traffic.step_s is not None:
            rows.append(["more pods asked for after", *(_seconds(result.asked_s) for result in results)])
            rows.append(["enough pods ready after", *(_seconds(result.enough_s) for result in results)])
        shed = (result.replay.shed / max(1e-9, result.replay.requests) for result in results)
        rows += [
            ["time over the knee", *(duration(result.replay.overloaded_s) for result in results)],
            ["requests that miss the objective", *(f"{result.missed_share:.2%}" for result in results)],
            ["requests shed", *(f"{share:.2%}" for share in shed)],
            ["most pods", *(str(result.most_pods) for result in results)],
            ["pod-hours", *(f"{result.pod_hours:.2f}" for result in results)],
        ]
        prices = [result.cost_per_10k for result in results if result.cost_per_10k is not None]
        if self.cost and prices:
            rows.append(["10,000 requests cost", *(f"{price:.3g} {self.cost.currency}" for price in prices)])
        return rows


def simulate(plan: Plan, options: SimulationOptions) -> Simulation:
    """Replays the traffic through the autoscaler that `marina manifests` would render."""
    if options.knee_rps is not None:
        plan = replace(plan, knee_rps=options.knee_rps)
    if options.cold_start_s is not None:
        plan = replace(plan, cold_start_s=options.cold_start_s)
    hpa = _autoscaler(plan)
    pod, assumed = _pod_profile(plan)
    traffic = _make_traffic(plan, pod, options)
    autoscalers = {"as rendered": hpa}
    if options.up_window_s is not None:
        autoscalers[f"{options.up_window_s} s before more"] = hpa.with_up_window(options.up_window_s)
    if options.forecast:
        other, label = ("none", "no forecast") if hpa.forecasts else ("weekly", "weekly forecast")
        autoscalers[label] = _autoscaler(_with_forecast(plan, other))
    if any(each.forecasts for each in autoscalers.values()) and not traffic.has_weeks:
        assumed.append("the past weeks: the same traffic at the same times")
    cost = plan.spec.cost
    results = [_result(label, each, traffic, pod, cost) for label, each in autoscalers.items()]
    return Simulation(plan.name, traffic, pod, results, assumed, cost)


def _with_forecast(plan: Plan, forecast: str) -> Plan:
    scaling = plan.spec.scaling
    if scaling.metric != "requests":
        text = f"`scaling.metric`: got `{scaling.metric}`, allowed with a forecast: `requests`"
        raise InputError(f"{plan.spec.file}: {text}", hint="simulate it without `--forecast`")
    changed = scaling.model_copy(update={"forecast": forecast})
    return replace(plan, spec=plan.spec.model_copy(update={"scaling": changed}))


def _autoscaler(plan: Plan) -> Hpa:
    metric, where = plan.spec.scaling.metric, f"{plan.spec.file}: `scaling"
    if metric not in ("requests", "cpu"):
        text = f"{where}.metric`: got `{metric}`, but the knee does not tell how it would change, allowed: `cpu`"
        raise InputError(f"{text}, `requests`", hint="simulate `metric: requests`")
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


def _pod_profile(plan: Plan) -> tuple[PodProfile, list[str]]:
    """What a pod can do, and what had to be assumed because it was never measured."""
    spec, assumed = plan.spec, []
    measured, target = plan.knee_rps, plan.target_rps_per_pod
    if measured is None and target is None:
        hint = f"marina calibrate {spec.file}, or --knee RPS"
        raise InputError("nothing was measured, so it is unknown how many requests/s a pod can serve", hint=hint)
    knee = measured if measured else (target or 0) / spec.scaling.knee_share
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
        queue=spec.queue,
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


def _result(label: str, hpa: Hpa, traffic: TrafficTrace, pod: PodProfile, cost: Cost | None) -> AutoscalerResult:
    """Replays traffic through an autoscaler. If it is a step, measures how long the autoscaler takes to follow it."""
    run = replay(traffic, hpa, pod)
    answered = run.requests - run.shed
    result = AutoscalerResult(
        label, hpa, run, cost_per_10k=cost.per_10k(answered / run.pod_seconds) if cost and answered else None
    )
    if traffic.step_s is None:
        return result
    high = traffic.rates[traffic.step_s]
    after = [moment for moment in run.moments if moment.at_s >= traffic.step_s and moment.rate == high]
    before, per_pod = run.moments[0].wanted, pod.target_rps * (1 + hpa.up.tolerance)
    asked = next((moment.at_s - traffic.step_s for moment in after if moment.wanted > before), None)
    enough = next((moment.at_s - traffic.step_s for moment in after if moment.ready * per_pod >= moment.rate), None)
    return replace(result, asked_s=asked, enough_s=enough)


def duration(seconds: float) -> str:
    """`45 s`, `12 min`, `3 h 20 min`."""
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    hours, minutes, rest = whole // 3600, whole % 3600 // 60, whole % 60
    parts = [(hours, "h"), (minutes, "min"), (rest if not hours else 0, "s")]
    return " ".join(f"{value} {unit}" for value, unit in parts if value)


def _seconds(value: int | None) -> str:
    return "never" if value is None else duration(value)
