"""A recorded autoscaler's looks, decided again from the same inputs: where the simulation comes to something else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from k8s.simulating.controller import SYNC_S, Controller
from k8s.simulating.hpa import Hpa
from k8s.simulating.outcome import duration
from k8s.simulating.recorded import Recording, Seen, in_words
from k8s.simulating.wishes import PodState, Reading

_LONG_AGO_S = -1e9
# Of a thousandth: a mean that was counted in whole ones stays what it was.
_HALF = 0.5
# How late a status may be read: a third of the time between two looks.
_LATEST_S = SYNC_S / 3


@dataclass(frozen=True)
class Difference:
    """One look that came to something else."""

    seen: Seen
    simulated: int
    from_before: bool
    """Whether it may follow from what was before the recording."""


@dataclass(frozen=True)
class Comparison:
    """Every look of a recording, decided again."""

    recording: Recording
    looks: int
    undecided: int
    """Looks whose metrics did not suffice."""
    differences: tuple[Difference, ...]

    @property
    def differs(self) -> bool:
        """Whether a look was decided otherwise that nothing from before can explain."""
        return any(not difference.from_before for difference in self.differences)

    def to_data(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "schema": "marina.simulation.recorded/1",
            "name": self.recording.name,
            "seconds": round(self.recording.seen[-1].at_s, 3),
            "remembers_s": self.recording.hpa.remembers_s,
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
        """For a person."""
        hpa, seen = self.recording.hpa, self.recording.seen
        rows = {
            "looks of the autoscaler": self.looks,
            "decided as recorded": self.looks - self.undecided - len(self.differences),
            "left open, for want of metrics": self.undecided,
            "decided otherwise": len(self.differences),
        }
        width = max(map(len, rows))
        lines = [f"{self.recording.name}: {duration(seen[-1].at_s)}, {hpa.low} to {hpa.high} pods"]
        lines += [f"  {label:<{width}}  {count:>5}" for label, count in rows.items()]
        lines += [_line(difference, hpa) for difference in self.differences]
        if all(look.ready is None for look in seen):
            lines.append("`ready` is not recorded: all pods are taken to have been read")
        return "\n".join(lines)


def _line(difference: Difference, hpa: Hpa) -> str:
    seen = difference.seen
    metrics = ", ".join(in_words(metric, seen.values.get(metric.name)) for metric in hpa.metrics)
    read = "" if seen.ready is None else f", {seen.ready} of them read"
    before = f"; may follow from before, the first {duration(hpa.remembers_s)} are remembered"
    decided = f"recorded {seen.desired}, simulated {difference.simulated}"
    return (
        f"  after {duration(seen.at_s)}: {seen.replicas} pods{read}, {metrics}: {decided}"
        f"{before if difference.from_before else ''}"
    )


def compare_recorded(recording: Recording) -> Comparison:
    """Decides each look again; what was scaled is as it was recorded, so that one difference makes no second."""
    controller, looks, undecided, differences = Controller(recording.hpa), 0, 0, []
    for seen in _looks(recording.seen):
        looks += 1
        decision = controller.decide(seen.at_s, seen.replicas, *_inputs(recording.hpa, seen))
        # Out of bounds, it decides without metrics.
        bounded = recording.hpa.low <= seen.replicas <= recording.hpa.high
        if not seen.active and bounded:
            undecided += 1
            continue
        if decision.replicas != seen.desired:
            from_before = seen.at_s < recording.hpa.remembers_s
            differences.append(Difference(seen, decision.replicas, from_before))
        controller.scale(seen.at_s, seen.replicas, seen.desired)
    return Comparison(recording, looks, undecided, tuple(differences))


def _looks(lines: tuple[Seen, ...]) -> Iterator[Seen]:
    """One for each status that is new, and one for every time between in which the controller looked and wrote nothing,
    because nothing had changed."""
    lines = _punctual(lines)
    last = lines[0]
    yield last
    for line in lines[1:]:
        new = line.status != last.status
        # The last of them wrote this line's status.
        until = line.at_s - SYNC_S / 2 if new else line.at_s
        # Once it has scaled, its next look writes how many pods there are.
        while last.desired == last.replicas and last.at_s + SYNC_S <= until:
            last = replace(last, at_s=last.at_s + SYNC_S)
            yield last
        if new:
            # Where it took pods away, they may have been gone when they were counted.
            last = _with_those_of(last, line) if line.desired < line.replicas else line
            yield last
        else:
            last = replace(last, ready=line.ready, running=line.running, read=line.read)


def _with_those_of(before: Seen, line: Seen) -> Seen:
    """With no fewer pods than the line before had."""
    read = {name: max(count, before.read.get(name, 0)) for name, count in line.read.items()}
    return replace(line, ready=_more(line.ready, before.ready), running=_more(line.running, before.running), read=read)


def _more(now: int | None, before: int | None) -> int | None:
    return now if now is None or before is None else max(now, before)


def _punctual(lines: tuple[Seen, ...]) -> tuple[Seen, ...]:
    """The lines with a status that was read late put back: between two looks are no fewer seconds than a look takes."""
    seen = list(lines)
    for place in range(len(seen) - 2, -1, -1):
        line, after = seen[place], seen[place + 1]
        late_s = (line.at_s - after.at_s) % SYNC_S
        if line.status != after.status and late_s <= _LATEST_S:
            seen[place] = replace(line, at_s=line.at_s - late_s)
    return tuple(seen)


def _inputs(hpa: Hpa, seen: Seen) -> tuple[list[PodState], dict[str, dict[str, Reading]], dict[str, float | None]]:
    """Pods and readings whose means are those that were written; who was not ready is taken to be starting."""
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
            pod.name: Reading((values[metric.name] + _HALF) / 1000) for pod in pods[: seen.read.get(metric.name, ready)]
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
