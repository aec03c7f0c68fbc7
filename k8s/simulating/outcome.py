"""What a replay came to, in numbers: for a table, for a record, for the drawing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from config.sections import Cost
from k8s.simulating.hpa import Hpa
from k8s.simulating.traffic import Trace
from k8s.simulating.world import Run, Service


@dataclass(frozen=True)
class Outcome:
    """One autoscaler on one trace."""

    label: str
    hpa: Hpa
    run: Run
    asked_s: int | None
    """After a step: until more pods were asked for."""
    enough_s: int | None
    """After a step: until as many pods were ready as the autoscaler's target needs."""

    @property
    def beyond(self) -> float:
        """Requests beyond the objective."""
        return self.run.late + self.run.shed

    @property
    def share(self) -> float:
        """Of all requests, those beyond the objective."""
        return self.beyond / self.run.requests if self.run.requests else 0.0

    @property
    def pod_hours(self) -> float:
        """Time that pods held a node."""
        return self.run.pod_seconds / 3600

    @property
    def most_pods(self) -> int:
        """Pods at most."""
        return max(moment.wanted for moment in self.run.moments)

    def to_data(self) -> dict[str, Any]:
        """As JSON."""
        data = {
            "label": self.label,
            "scale_up_window_s": self.hpa.up.window_s,
            "requests": round(self.run.requests),
            "beyond_objective": round(self.beyond),
            "shed": round(self.run.shed),
            "beyond_share": round(self.share, 6),
            "short_s": self.run.short_s,
            "pods_most": self.most_pods,
            "pod_hours": round(self.pod_hours, 3),
            "decisions": [{"at_s": at, "from": before, "to": after} for at, before, after in self.run.decisions],
        }
        if self.asked_s is not None or self.enough_s is not None:
            data |= {"asked_after_s": self.asked_s, "enough_after_s": self.enough_s}
        return data


@dataclass(frozen=True)
class Simulation:
    """A trace, and what came of it under one autoscaler or more."""

    name: str
    trace: Trace
    service: Service
    outcomes: list[Outcome]
    assumed: list[str]
    """What was not measured."""
    cost: Cost | None = None

    def to_data(self) -> dict[str, Any]:
        """As JSON."""
        service = self.service
        return {
            "schema": "marina.simulation/1",
            "name": self.name,
            "trace": self.trace.name,
            "seconds": len(self.trace.rates),
            "knee_rps": service.knee_rps,
            "target_rps_per_pod": service.target_rps,
            "cold_start_s": service.cold_start_s,
            "node_s": service.node_s,
            "assumed": self.assumed,
            "outcomes": [outcome.to_data() | self._price_data(outcome) for outcome in self.outcomes],
        }

    def _price_data(self, outcome: Outcome) -> dict[str, Any]:
        return {"cost_per_10k": self._price(outcome), "currency": self.cost.currency} if self.cost else {}

    def to_text(self) -> str:
        """For a person."""
        lines = [f"{self.name}: {self.trace.name}, {duration(len(self.trace.rates))}", self.service_text()]
        rows = self.rows()
        first = max(len(row[0]) for row in rows)
        widths = [max(len(row[column]) for row in rows) for column in range(1, len(rows[0]))]
        for label, *values in rows:
            cells = (f"{value:>{width}}" for value, width in zip(values, widths, strict=True))
            lines.append(f"  {label:<{first}}  {'  '.join(cells)}".rstrip())
        return "\n".join(lines)

    def service_text(self) -> str:
        """What a pod is taken to do and need."""
        service = self.service
        node = f", {service.node_s:g} s for a node" if service.node_s else ""
        return (
            f"  a pod: {service.knee_rps:g} requests/s at most, aimed at {service.target_rps:.3g}, "
            f"ready in {service.cold_start_s:g} s{node}"
        )

    def rows(self) -> list[list[str]]:
        """The table: a label, and a value of each outcome."""
        rows = [["", *(outcome.label for outcome in self.outcomes)]]
        if self.trace.step_s is not None:
            rows.append(["more pods asked for after", *(_seconds(outcome.asked_s) for outcome in self.outcomes)])
            rows.append(["enough pods ready after", *(_seconds(outcome.enough_s) for outcome in self.outcomes)])
        rows += [
            ["asked for more than the knee", *(duration(outcome.run.short_s) for outcome in self.outcomes)],
            ["requests beyond the objective", *(f"{outcome.share:.2%}" for outcome in self.outcomes)],
            ["of all requests, shed", *(_share(outcome.run.shed, outcome.run.requests) for outcome in self.outcomes)],
            ["pods at most", *(str(outcome.most_pods) for outcome in self.outcomes)],
            ["pod-hours", *(f"{outcome.pod_hours:.2f}" for outcome in self.outcomes)],
        ]
        if self.cost is not None:
            prices = (self._price(outcome) for outcome in self.outcomes)
            rows.append(["10,000 requests cost", *(f"{price:.3g} {self.cost.currency}" for price in prices)])
        return rows

    def _price(self, outcome: Outcome) -> float:
        """Of 10,000 requests of this traffic, the pods' idle time included."""
        run = outcome.run
        return self.cost.per_10k(run.requests / run.pod_seconds) if self.cost and run.requests else 0.0


def make_outcome(label: str, hpa: Hpa, trace: Trace, service: Service, run: Run) -> Outcome:
    """A run with what a step's trace can say besides."""
    if trace.step_s is None:
        return Outcome(label, hpa, run, None, None)
    after = [
        moment for moment in run.moments if moment.at_s >= trace.step_s and moment.rate == trace.rates[trace.step_s]
    ]
    before = run.moments[0].wanted
    aimed = service.target_rps * (1 + hpa.up.tolerance)
    asked = next((moment.at_s - trace.step_s for moment in after if moment.wanted > before), None)
    enough = next((moment.at_s - trace.step_s for moment in after if moment.ready * aimed >= moment.rate), None)
    return Outcome(label, hpa, run, asked, enough)


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


def _share(part: float, whole: float) -> str:
    return f"{part / whole if whole else 0:.2%}"
