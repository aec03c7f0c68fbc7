"""The simulation makes the decisions that the HorizontalPodAutoscaler's controller of Kubernetes 1.36 made every 15 s.

A recording has a line for each time at which the autoscaler was read, with the pods that were ready and running and for
how many a metric had a value. The autoscalers are Marina's own for the digits example at 70 requests/s, with various
windows, policies and tolerances. Pods took a while to start; metrics appeared, disappeared, and lay at the edge of the
tolerance."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from marina.config.quantity import quantity
from marina.k8s.simulating.controller import SYNC_S, Controller, PodMetric, PodState
from marina.k8s.simulating.hpa import Hpa, read_hpa

RECORDED = sorted(Path(__file__).with_name("recorded").glob("*.jsonl"))
LONG_AGO_S = -1e9
# Half a thousandth, so that a mean that was recorded in whole thousandths is not rounded down.
HALF = 0.5


@dataclass(frozen=True)
class Seen:
    """The autoscaler's object at one moment; means of metrics are in thousandths of their unit."""

    at_s: float
    replicas: int
    desired: int
    values: dict[str, int]
    active: bool
    ready: int
    running: int
    read: dict[str, int]

    @property
    def status(self) -> tuple[Any, ...]:
        """What the controller writes. If it is equal in two observations, nothing has changed."""
        return self.replicas, self.desired, sorted(self.values.items()), self.active


def recording(file: Path) -> tuple[Hpa, list[Seen]]:
    lines = [json.loads(text) for text in file.read_text(encoding="utf-8").splitlines()]
    hpa = read_hpa({"kind": "HorizontalPodAutoscaler", "spec": lines[0]["spec"]})
    # The status is empty until the controller's first sync.
    return hpa, [seen(line, lines[0]["at"]) for line in lines if line["status"].get("conditions")]


def seen(line: dict[str, Any], begin: float) -> Seen:
    status, replicas = line["status"], line["status"].get("currentReplicas", 0)
    active = {each["type"]: each["status"] for each in status["conditions"]}.get("ScalingActive") == "True"
    values = dict(filter(None, map(mean_of, status.get("currentMetrics") or [])))
    ready = min(line.get("ready", replicas), replicas)
    running = min(max(line.get("running", ready), ready), replicas)
    desired = status["desiredReplicas"]
    return Seen(line["at"] - begin, replicas, desired, values, active, ready, running, line.get("read") or {})


def mean_of(part: dict[str, Any]) -> tuple[str, int] | None:
    """None for the empty metric that stands for one without a value."""
    if (kind := part.get("type")) in ("External", "Pods"):
        body = part[kind.lower()]
        return body["metric"]["name"], math.ceil(1000 * quantity(str(body["current"]["averageValue"])) - 1e-6)
    if kind in ("ContainerResource", "Resource"):
        body = part[kind[0].lower() + kind[1:]]
        return body["name"], 10 * body["current"]["averageUtilization"]
    return None


def syncs(lines: list[Seen]) -> Iterator[Seen]:
    """One observation for each sync of the controller: for each new status, and for each sync between two lines that
    wrote nothing because nothing had changed."""
    for place in range(len(lines) - 2, -1, -1):
        # A line that was read late is moved back, so that syncs are whole periods apart.
        late_s = (lines[place].at_s - lines[place + 1].at_s) % SYNC_S
        if lines[place].status != lines[place + 1].status and late_s <= SYNC_S / 3:
            lines[place] = replace(lines[place], at_s=lines[place].at_s - late_s)
    last = lines[0]
    yield last
    for line in lines[1:]:
        new = line.status != last.status
        until = line.at_s - SYNC_S / 2 if new else line.at_s
        # After it has scaled, its next sync writes the new number of pods.
        while last.desired == last.replicas and last.at_s + SYNC_S <= until:
            last = replace(last, at_s=last.at_s + SYNC_S)
            yield last
        if not new:
            last = replace(last, ready=line.ready, running=line.running, read=line.read)
            continue
        if line.desired < line.replicas:
            # Some of the pods that it removed may have been gone when they were counted.
            read = {name: max(count, last.read.get(name, 0)) for name, count in line.read.items()}
            line = replace(line, ready=max(line.ready, last.ready), running=max(line.running, last.running), read=read)
        last = line
        yield last


def decided(controller: Controller, hpa: Hpa, at: Seen) -> int:
    """The number of pods that the simulation decides on; pods that were not ready are assumed to be starting."""
    pods = [
        PodState(
            f"pod-{number}",
            pending=number >= at.running,
            started_s=LONG_AGO_S if number < at.ready else None,
            ready=number < at.ready,
            ready_changed_s=LONG_AGO_S,
        )
        for number in range(at.replicas)
    ]
    values = at.values if at.active else {}
    readings: dict[str, dict[str, PodMetric]] = {}
    totals: dict[str, float | None] = {}
    for metric in hpa.metrics:
        mean = values.get(metric.name)
        if metric.kind == "External":
            totals[metric.name] = None if mean is None else (mean * at.replicas + HALF) / 1000
        elif mean is not None:
            known = pods[: at.read.get(metric.name, at.ready)]
            readings[metric.name] = {pod.name: PodMetric((mean + HALF) / 1000) for pod in known}
    return controller.decide(at.at_s, at.replicas, pods, readings, totals)


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.stem)
def test_each_decision_of_a_real_controller_is_made_again(file: Path) -> None:
    hpa, lines = recording(file)
    controller = Controller(hpa)
    differences: list[Any] = []
    made: list[bool] = []
    for at in syncs(lines):
        simulated = decided(controller, hpa, at)
        # Without metrics it decides nothing, except outside its bounds.
        if at.active or not hpa.low <= at.replicas <= hpa.high:
            made.append(at.desired != at.replicas)
            if simulated != at.desired:
                differences.append((at.at_s, at.desired, simulated))
            # Scaled as recorded, so that one difference causes no second one.
            controller.scale(at.at_s, at.replicas, at.desired)
    assert differences == []
    assert len(made) >= 19
    assert any(made)
