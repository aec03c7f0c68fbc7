"""What is deployed, and how it is: the revision, its pods, its autoscaler, and what was proven of it."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k8s.rollout.cluster import Cluster, Document, Ref
from k8s.rollout.diagnosis import Reason, reasons
from k8s.rollout.history import State, Store
from k8s.rollout.wait import PodState, arrived, look_now, pod_states

SCHEMA = "marina.status/1"
_SHA = 12


@dataclass(frozen=True)
class Status:
    """One look; nothing is changed."""

    name: str
    namespace: str
    context: str
    state: State | None
    facts: dict[str, str]
    pods: tuple[PodState, ...]
    rollout: str
    """What is there, once it is complete."""
    autoscaler: str
    reasons: tuple[Reason, ...]
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
            "reasons": [reason.to_data() for reason in self.reasons],
            "verdict": self.verdict,
        }


def look(cluster: Cluster, namespace: str, name: str, folder: Path) -> Status:
    """One look at a spec's deployment."""
    store = Store(cluster, namespace, name, holder="")
    state = store.load()
    revision = store.read(state.trying or state.current) if state else None
    deployment = next((ref for ref in state.objects if ref.kind == "Deployment"), None) if state else None
    view = look_now(cluster, deployment) if deployment else None
    facts = revision.facts if revision else {}
    return Status(
        name=name,
        namespace=namespace,
        context=cluster.context,
        state=state,
        facts=facts,
        pods=tuple(pod_states(view)) if view else (),
        rollout=arrived(view.deployment) if view else "",
        autoscaler=_autoscaler(cluster, deployment) if deployment else "",
        reasons=tuple(reasons(view)) if view else (),
        verdict=_verdict(folder, facts),
    )


def summary(status: Status) -> str:
    """What a person wants to know of it."""
    state, where = status.state, f"{status.name} in {status.namespace} (context {status.context})"
    if state is None:
        return f"{where}: not deployed"
    lines = [f"{where}: {_phase(state)}"]
    facts = status.facts
    lines += [f"  {key:<11}{facts[key]}" for key in ("version", "image") if key in facts]
    lines += [f"  {key:<11}{facts[key][:_SHA]}…" for key in ("package", "evidence") if key in facts]
    lines += [f"  pods       {status.rollout or 'not all there'}"]
    lines += [f"    {pod}" for pod in status.pods]
    lines += [f"  autoscaler {status.autoscaler}"] if status.autoscaler else []
    lines += [f"  verdict    {status.verdict}"] if status.verdict else []
    lines += [f"  kept       {', '.join(map(str, state.good))}"] if state.good else []
    lines += [f"  message    {state.message}"] if state.message else []
    lines += [f"  {reason}" for reason in status.reasons]
    return "\n".join(lines)


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
    found = cluster.list("autoscaling/v2", "HorizontalPodAutoscaler", deployment.namespace)["items"]
    for one in found:
        if one["spec"]["scaleTargetRef"]["name"] == deployment.name:
            return _scaling(one)
    return ""


def _scaling(autoscaler: Document) -> str:
    spec, status = autoscaler["spec"], autoscaler.get("status") or {}
    text = f"{status.get('currentReplicas', 0)} of {spec.get('minReplicas', 1)} to {spec['maxReplicas']} pods, "
    text += f"wants {status.get('desiredReplicas', '?')}"
    now = {_metric(one): _value(one, "current") for one in status.get("currentMetrics") or []}
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
    found = details.get(which) or {}
    if found.get("averageUtilization") is not None:
        return f"{found['averageUtilization']} %"
    return str(found.get("averageValue") or found.get("value") or "")


def _verdict(folder: Path, facts: dict[str, str]) -> str:
    with suppress(OSError, ValueError, KeyError, TypeError):
        data = json.loads((folder / "verdict.json").read_text(encoding="utf-8"))
        tested = str(data["tested"].get("package") or "")
        text = f"{data['verdict']['status']} at {data['at']}"
        deployed = facts.get("package", "")
        return text if tested and tested == deployed else f"{text}, of another package than the one deployed"
    return ""
