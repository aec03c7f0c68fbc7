"""What is deployed, and how it is: the revision, its pods, its autoscaler, and what was proven of it."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k8s.rollout.diagnosis import Cause, causes
from k8s.rollout.history import State
from k8s.rollout.placement import Placement
from k8s.rollout.scaling import Scaling, read_scaling
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
    scaling: Scaling | None
    causes: tuple[Cause, ...]
    verdict: str
    """Of the last load test in the build folder."""

    @property
    def exit_code(self) -> int:
        """0 when what was deployed last is there and complete."""
        return 0 if self.state and self.state.phase == "deployed" and self.rollout else 1

    def to_data(self) -> dict[str, Any]:
        state, scaling = self.state, self.scaling
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
            "autoscaler": scaling.text if scaling else "",
            "scaling_blocked": scaling.blocked if scaling else "",
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
        lines += [f"  {key:<11}{facts[key]}" for key in ("version", "image", "patched") if key in facts]
        lines += [f"  {key:<11}{facts[key][:_SHA]}…" for key in ("package", "evidence") if key in facts]
        lines += [f"  pods       {self.rollout or 'not all available'}"]
        lines += [f"    {pod}" for pod in self.pods]
        if scaling := self.scaling:
            lines += [f"  autoscaler {scaling.text}"]
            lines += [f"    {scaling.blocked}"] if scaling.blocked else []
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
        scaling=read_scaling(cluster, deployment) if deployment else None,
        causes=tuple(causes(view)) if view else (),
        verdict=_verdict(folder, facts),
    )


def _phase(state: State) -> str:
    if state.held:
        return f"revision {state.trying or state.current} is being changed by {state.holder}"
    if state.phase == "deployed":
        return f"revision {state.current}"
    if state.phase == "deleting":
        return "half deleted: marina delete finishes it"
    # A run that was killed could not say so; its hold has ended since.
    phase = "interrupted" if state.phase == "deploying" else state.phase
    before = f"; the last that became ready is {state.current}" if state.current else ""
    return f"revision {state.trying or state.current} {phase}{before}"


def _verdict(folder: Path, facts: dict[str, str]) -> str:
    with suppress(OSError, ValueError, KeyError, TypeError):
        data = json.loads((folder / "verdict.json").read_text(encoding="utf-8"))
        tested = str(data["tested"].get("package") or "")
        text = f"{data['verdict']['status']} at {data['at']}"
        deployed = facts.get("package", "")
        return text if tested and tested == deployed else f"{text}, of another package than the one deployed"
    return ""
