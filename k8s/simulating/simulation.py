"""The result of a simulation in figures: as a table, as a record, and for the charts."""

from dataclasses import dataclass
from typing import Any

from marina.config.sections import Cost
from marina.k8s.simulating.hpa import Hpa
from marina.k8s.simulating.replay import PodProfile, Replay, replay
from marina.k8s.simulating.traffic import TrafficTrace


@dataclass(frozen=True)
class AutoscalerResult:
    """What the traffic did under one autoscaler."""

    label: str
    hpa: Hpa
    replay: Replay
    asked_s: int | None
    """After a step: seconds until more pods were asked for; None if never."""
    enough_s: int | None
    """After a step: seconds until as many pods were ready as the target needs; None if never."""

    @property
    def missed(self) -> float:
        """Requests that missed the objective."""
        return self.replay.late + self.replay.shed

    @property
    def missed_share(self) -> float:
        """The share of all requests that missed the objective."""
        return self._share(self.missed)

    @property
    def shed_share(self) -> float:
        """The share of all requests that were shed."""
        return self._share(self.replay.shed)

    def _share(self, requests: float) -> float:
        return requests / self.replay.requests if self.replay.requests else 0.0

    @property
    def pod_hours(self) -> float:
        """How long pods occupied a node, all added up."""
        return self.replay.pod_seconds / 3600

    @property
    def most_pods(self) -> int:
        return max(moment.wanted for moment in self.replay.moments)

    def to_data(self) -> dict[str, Any]:
        """Its part of the record that `--json` prints."""
        replay = self.replay
        data = {
            "label": self.label,
            "scale_up_window_s": self.hpa.up.window_s,
            "requests": round(replay.requests),
            "beyond_objective": round(self.missed),
            "shed": round(replay.shed),
            "beyond_share": round(self.missed_share, 6),
            "short_s": replay.overloaded_s,
            "pods_most": self.most_pods,
            "pod_hours": round(self.pod_hours, 3),
            "decisions": [{"at_s": at, "from": before, "to": after} for at, before, after in replay.decisions],
        }
        if self.asked_s is not None or self.enough_s is not None:
            data |= {"asked_after_s": self.asked_s, "enough_after_s": self.enough_s}
        return data


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
        pod = self.pod
        return {
            "schema": "marina.simulation/1",
            "name": self.name,
            "trace": self.traffic.name,
            "seconds": len(self.traffic.rates),
            "knee_rps": pod.knee_rps,
            "target_rps_per_pod": pod.target_rps,
            "cold_start_s": pod.cold_start_s,
            "node_s": pod.node_s,
            "assumed": self.assumed,
            "outcomes": [result.to_data() | self._price_data(result) for result in self.results],
        }

    def _price_data(self, result: AutoscalerResult) -> dict[str, Any]:
        price = self._price(result)
        return {"cost_per_10k": price, "currency": self.cost.currency} if self.cost and price else {}

    def to_text(self) -> str:
        """The table, under a line about the traffic and one about the pods."""
        lines = [f"{self.name}: {self.traffic.name}, {duration(len(self.traffic.rates))}", f"  {self.pod}"]
        rows = self.rows()
        first = max(len(row[0]) for row in rows)
        widths = [max(len(row[column]) for row in rows) for column in range(1, len(rows[0]))]
        for label, *values in rows:
            cells = (f"{value:>{width}}" for value, width in zip(values, widths, strict=True))
            lines.append(f"  {label:<{first}}  {'  '.join(cells)}".rstrip())
        return "\n".join(lines)

    def rows(self) -> list[list[str]]:
        """The table: each row has a label and a value for each autoscaler."""
        results = self.results
        rows = [["", *(result.label for result in results)]]
        if self.traffic.step_s is not None:
            rows.append(["more pods asked for after", *(_seconds(result.asked_s) for result in results)])
            rows.append(["enough pods ready after", *(_seconds(result.enough_s) for result in results)])
        rows += [
            ["time over the knee", *(duration(result.replay.overloaded_s) for result in results)],
            ["requests that miss the objective", *(f"{result.missed_share:.2%}" for result in results)],
            ["requests shed", *(f"{result.shed_share:.2%}" for result in results)],
            ["most pods", *(str(result.most_pods) for result in results)],
            ["pod-hours", *(f"{result.pod_hours:.2f}" for result in results)],
        ]
        prices = [price for result in results if (price := self._price(result))]
        if self.cost and prices:
            rows.append(["10,000 requests cost", *(f"{price:.3g} {self.cost.currency}" for price in prices)])
        return rows

    def _price(self, result: AutoscalerResult) -> float | None:
        """The price of 10,000 answered requests, the pods' idle time included. None without a price of a pod, or
        without answers."""
        answered = result.replay.requests - result.replay.shed
        return self.cost.per_10k(answered / result.replay.pod_seconds) if self.cost and answered else None


def make_result(label: str, hpa: Hpa, traffic: TrafficTrace, pod: PodProfile) -> AutoscalerResult:
    """Replays traffic through an autoscaler. If it is a step, measures how long the autoscaler takes to follow it."""
    run = replay(traffic, hpa, pod)
    if traffic.step_s is None:
        return AutoscalerResult(label, hpa, run, None, None)
    high = traffic.rates[traffic.step_s]
    after = [moment for moment in run.moments if moment.at_s >= traffic.step_s and moment.rate == high]
    before = run.moments[0].wanted
    per_pod = pod.target_rps * (1 + hpa.up.tolerance)
    asked = next((moment.at_s - traffic.step_s for moment in after if moment.wanted > before), None)
    enough = next((moment.at_s - traffic.step_s for moment in after if moment.ready * per_pod >= moment.rate), None)
    return AutoscalerResult(label, hpa, run, asked, enough)


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
