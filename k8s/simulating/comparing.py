"""Makes the decisions of a recorded autoscaler again from the same inputs, and finds those that differ."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from marina.k8s.simulating.controller import SYNC_S, Controller
from marina.k8s.simulating.hpa import Hpa
from marina.k8s.simulating.recording import Observation, Recording, describe_metric
from marina.k8s.simulating.replica_calculator import PodMetric, PodState
from marina.k8s.simulating.simulation import duration

_LONG_AGO_S = -1e9
# Half a thousandth, so that a mean that was recorded in whole thousandths is not rounded down.
_HALF = 0.5
# How long after the controller wrote a status it may have been read: a third of its sync period.
_LATEST_S = SYNC_S / 3


@dataclass(frozen=True)
class DifferentDecision:
    """One recorded decision that the simulation makes differently."""

    seen: Observation
    simulated: int
    """The number of pods that the simulation decides on."""
    from_before: bool
    """Whether events before the recording may explain it."""


@dataclass(frozen=True)
class RecordedComparison:
    """Every decision of a recording, made again."""

    recording: Recording
    looks: int
    """How many decisions were made again."""
    undecided: int
    """How many of them lacked metrics."""
    differences: tuple[DifferentDecision, ...]

    @property
    def differs(self) -> bool:
        """Whether a decision differs that nothing before the recording can explain."""
        return any(not difference.from_before for difference in self.differences)

    def to_data(self) -> dict[str, Any]:
        """The record that `--json` prints."""
        return {
            "schema": "marina.simulation.recorded/1",
            "name": self.recording.name,
            "seconds": round(self.recording.seen[-1].at_s, 3),
            "remembers_s": self.recording.hpa.history_s,
            "looks": self.looks,
            "undecided": self.undecided,
            "differs": self.differs,
            "differences": [
                {
                    "at_s": round(difference.seen.at_s, 3),
                    "replicas": difference.seen.replicas,
                    "ready": difference.seen.ready,
                    "values": {name: value / 1000 for name, value in difference.seen.values.items()},
                    "recorded": difference.seen.desired,
                    "simulated": difference.simulated,
                    "from_before": difference.from_before,
                }
                for difference in self.differences
            ],
        }

    def to_text(self) -> str:
        """The counts, and a line for each difference."""
        hpa, seen = self.recording.hpa, self.recording.seen
        rows = {
            "decisions of the autoscaler": self.looks,
            "decided as recorded": self.looks - self.undecided - len(self.differences),
            "not decided, metrics missing": self.undecided,
            "decided differently": len(self.differences),
        }
        width = max(map(len, rows))
        lines = [f"{self.recording.name}: {duration(seen[-1].at_s)}, {hpa.low} to {hpa.high} pods"]
        lines += [f"  {label:<{width}}  {count:>5}" for label, count in rows.items()]
        lines += [_line(difference, hpa) for difference in self.differences]
        if all(look.ready is None for look in seen):
            lines.append("`ready` is not recorded, so all pods are assumed to have had metrics")
        return "\n".join(lines)


def _line(difference: DifferentDecision, hpa: Hpa) -> str:
    seen = difference.seen
    metrics = ", ".join(describe_metric(metric, seen.values.get(metric.name)) for metric in hpa.metrics)
    ready = "" if seen.ready is None else f", {seen.ready} of them ready"
    before = f"; events before the recording may explain it, the autoscaler remembers {duration(hpa.history_s)}"
    decided = f"recorded {seen.desired}, simulated {difference.simulated}"
    return (
        f"  after {duration(seen.at_s)}: {seen.replicas} pods{ready}, {metrics}: {decided}"
        f"{before if difference.from_before else ''}"
    )


def compare_recorded(recording: Recording) -> RecordedComparison:
    """Makes each decision again. The pods are then scaled as recorded, so that one difference causes no second one."""
    controller, looks, undecided, differences = Controller(recording.hpa), 0, 0, []
    for seen in _syncs(recording.seen):
        looks += 1
        simulated = controller.decide(seen.at_s, seen.replicas, *_inputs(recording.hpa, seen))
        # Outside its bounds, the controller decides without metrics.
        bounded = recording.hpa.low <= seen.replicas <= recording.hpa.high
        if not seen.active and bounded:
            undecided += 1
            continue
        if simulated != seen.desired:
            from_before = seen.at_s < recording.hpa.history_s
            differences.append(DifferentDecision(seen, simulated, from_before))
        controller.scale(seen.at_s, seen.replicas, seen.desired)
    return RecordedComparison(recording, looks, undecided, tuple(differences))


def _syncs(lines: tuple[Observation, ...]) -> Iterator[Observation]:
    """One observation for each sync of the controller: for each new status, and for each sync between two lines that
    wrote nothing because nothing had changed."""
    lines = _without_delays(lines)
    last = lines[0]
    yield last
    for line in lines[1:]:
        new = line.status != last.status
        # The last sync before this line wrote its status.
        until = line.at_s - SYNC_S / 2 if new else line.at_s
        # After it has scaled, its next sync writes the new number of pods.
        while last.desired == last.replicas and last.at_s + SYNC_S <= until:
            last = replace(last, at_s=last.at_s + SYNC_S)
            yield last
        if new:
            # If it removed pods, some may have been gone when `ready` and `running` were counted.
            last = _with_counts_of(last, line) if line.desired < line.replicas else line
            yield last
        else:
            last = replace(last, ready=line.ready, running=line.running, read=line.read)


def _with_counts_of(before: Observation, line: Observation) -> Observation:
    """The line, counting at least as many pods as the one before it."""
    read = {name: max(count, before.read.get(name, 0)) for name, count in line.read.items()}
    ready, running = _larger(line.ready, before.ready), _larger(line.running, before.running)
    return replace(line, ready=ready, running=running, read=read)


def _larger(now: int | None, before: int | None) -> int | None:
    return now if now is None or before is None else max(now, before)


def _without_delays(lines: tuple[Observation, ...]) -> tuple[Observation, ...]:
    """The lines, with those that were read late moved back in time, so that syncs are whole periods apart."""
    seen = list(lines)
    for place in range(len(seen) - 2, -1, -1):
        line, after = seen[place], seen[place + 1]
        late_s = (line.at_s - after.at_s) % SYNC_S
        if line.status != after.status and late_s <= _LATEST_S:
            seen[place] = replace(line, at_s=line.at_s - late_s)
    return tuple(seen)


def _inputs(
    hpa: Hpa, seen: Observation
) -> tuple[list[PodState], dict[str, dict[str, PodMetric]], dict[str, float | None]]:
    """Pods and metrics with the recorded means; pods that were not ready are assumed to be starting."""
    ready = seen.replicas if seen.ready is None else min(seen.ready, seen.replicas)
    running = ready if seen.running is None else min(max(seen.running, ready), seen.replicas)
    pods = [
        PodState(
            f"pod-{number}",
            pending=number >= running,
            started_s=_LONG_AGO_S if number < ready else None,
            ready=number < ready,
            ready_changed_s=_LONG_AGO_S,
        )
        for number in range(seen.replicas)
    ]
    values = seen.values if seen.active else {}
    readings = {
        metric.name: {
            pod.name: PodMetric((values[metric.name] + _HALF) / 1000)
            for pod in pods[: seen.read.get(metric.name, ready)]
        }
        for metric in hpa.metrics
        if metric.kind != "External" and metric.name in values
    }
    totals = {
        metric.name: (values[metric.name] * seen.replicas + _HALF) / 1000 if metric.name in values else None
        for metric in hpa.metrics
        if metric.kind == "External"
    }
    return pods, readings, totals
