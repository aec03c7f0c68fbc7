"""What is deployed, and how it is: the revision, its pods, its autoscaler, and what was proven of it."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k8s.cluster import Cluster, Document, Ref
from k8s.rollout.diagnosis import Cause, causes
from k8s.rollout.history import State
from k8s.rollout.placement import Placement
from k8s.rollout.wait import PodState, availability, pod_states, read_view

SCHEMA = "marina.status/1"
_SHA = 12


@dataclass(frozen=True)
class Status:
    """What is deployed right now."""

    name: str
    namespace: str
    context: str
    state: State | None
    facts: dict[str, str]
    pods: tuple[PodState, ...]
    rollout: str
    """What is there, once it is complete."""
    autoscaler: str
    causes: tuple[Cause, ...]
    verdict: str
    """Of the last load test in the build folder."""

    @property
    def exit_code(self) -> int:
        """0 when what was deployed last is there and complete."""
        return 0 if self.state and self.state.phase == "deployed" and self.rollout else 1

    def to_data(self) -> dict[str, Any]:
        state = self.state
        return {
            "schema": SCHEMA,
            "name": self.name,
            "namespace": self.namespace,
            "context": self.context,
            "phase": state.phase if state else "absent",
            "revision": state.current if state else 0,
            "trying": state.trying if state else 0,
            "kept": list(state.good) if state else [],
            "held_by": state.holder if state and state.held else "",
            "message": state.message if state else "",
            "facts": self.facts,
            "complete": bool(self.rollout),
            "pods": [vars(pod) for pod in self.pods],
            "autoscaler": self.autoscaler,
            "reasons": [cause.to_data() for cause in self.causes],
            "verdict": self.verdict,
        }

    def to_text(self) -> str:
        """What a person wants to know of it."""
        state, where = self.state, f"{self.name} in {self.namespace} (context {self.context})"
        if state is None:
            return f"{where}: not deployed"
        lines = [f"{where}: {_phase(state)}"]
        facts = self.facts
        lines += [f"  {key:<11}{facts[key]}" for key in ("version", "image") if key in facts]
        lines += [f"  {key:<11}{facts[key][:_SHA]}…" for key in ("package", "evidence") if key in facts]
        lines += [f"  pods       {self.rollout or 'not all available'}"]
        lines += [f"    {pod}" for pod in self.pods]
        lines += [f"  autoscaler {self.autoscaler}"] if self.autoscaler else []
        lines += [f"  verdict    {self.verdict}"] if self.verdict else []
        lines += [f"  kept       {', '.join(map(str, state.good))}"] if state.good else []
        lines += [f"  message    {state.message}"] if state.message else []
        lines += [f"  {cause}" for cause in self.causes]
        return "\n".join(lines)


def read_status(placement: Placement, folder: Path) -> Status:
    """One look at a spec's deployment; its last verdict is looked for in a build folder, if there is one."""
    cluster, store = placement.cluster, placement.store
    state = store.load()
    revision = store.read(state.trying or state.current) if state else None
    deployment = next((ref for ref in state.objects if ref.kind == "Deployment"), None) if state else None
    view = read_view(cluster, deployment) if deployment else None
    facts = revision.facts if revision else {}
    return Status(
        name=placement.name,
        namespace=placement.namespace,
        context=cluster.context,
        state=state,
        facts=facts,
        pods=tuple(pod_states(view)) if view else (),
        rollout=availability(view.deployment) if view else "",
        autoscaler=_autoscaler(cluster, deployment) if deployment else "",
        causes=tuple(causes(view)) if view else (),
        verdict=_verdict(folder, facts),
    )


def _phase(state: State) -> str:
    if state.held:
        return f"revision {state.trying or state.current} is being changed by {state.holder}"
    if state.phase == "deployed":
        return f"revision {state.current}"
    if state.phase == "deleting":
        return "half deleted: marina delete goes on"
    # A run that was killed could not say so; its hold has ended since.
    phase = "interrupted" if state.phase == "deploying" else state.phase
    before = f"; the last that came up is {state.current}" if state.current else ""
    return f"revision {state.trying or state.current} {phase}{before}"


def _autoscaler(cluster: Cluster, deployment: Ref) -> str:
    """What the autoscaler of a Deployment sees and wants; KEDA's is one of these as well."""
    for document in cluster.list("autoscaling/v2", "HorizontalPodAutoscaler", deployment.namespace)["items"]:
        if document["spec"]["scaleTargetRef"]["name"] == deployment.name:
            return _scaling(document)
    return ""


def _scaling(autoscaler: Document) -> str:
    spec, status = autoscaler["spec"], autoscaler.get("status") or {}
    text = f"{status.get('currentReplicas', 0)} of {spec.get('minReplicas', 1)} to {spec['maxReplicas']} pods, "
    text += f"wants {status.get('desiredReplicas', '?')}"
    now = {_metric(metric): _value(metric, "current") for metric in status.get("currentMetrics") or []}
    for metric in spec.get("metrics") or []:
        text += f"; {_metric(metric)} {now.get(_metric(metric)) or 'unknown'} of {_value(metric, 'target')}"
    for condition in status.get("conditions") or []:
        if condition.get("type") in ("AbleToScale", "ScalingActive") and condition.get("status") == "False":
            text += f"; {condition.get('message') or condition.get('reason')}"
    return text


def _metric(metric: Document) -> str:
    details: Document = next((value for key, value in metric.items() if key != "type"), {})
    return str((details.get("metric") or {}).get("name") or details.get("name") or metric.get("type"))


def _value(metric: Document, which: str) -> str:
    details: Document = next((value for key, value in metric.items() if key != "type"), {})
    amounts = details.get(which) or {}
    if amounts.get("averageUtilization") is not None:
        return f"{amounts['averageUtilization']} %"
    return str(amounts.get("averageValue") or amounts.get("value") or "")


def _verdict(folder: Path, facts: dict[str, str]) -> str:
    with suppress(OSError, ValueError, KeyError, TypeError):
        data = json.loads((folder / "verdict.json").read_text(encoding="utf-8"))
        tested = str(data["tested"].get("package") or "")
        text = f"{data['verdict']['status']} at {data['at']}"
        deployed = facts.get("package", "")
        return text if tested and tested == deployed else f"{text}, of another package than the one deployed"
    return ""
