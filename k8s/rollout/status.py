"""The status of a release: the revision, its pods, its autoscaler, and the last verdict."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any

from marina.k8s.cluster import ApiError, Cluster, Document, Ref
from marina.k8s.rollout.autoscaler import AutoscalerStatus, read_autoscaler
from marina.k8s.rollout.diagnosis import Cause, DeploymentView, find_causes
from marina.k8s.rollout.diff import owned_fields
from marina.k8s.rollout.history import Revision, State
from marina.k8s.rollout.placement import Placement
from marina.k8s.rollout.wait import PodSummary, availability, describe_empty, read_view, summarise_pods

SCHEMA = "marina.status/1"
_SHA = 12


@dataclass(frozen=True)
class ServiceStatus:
    """The status of a release right now."""

    name: str
    namespace: str
    context: str
    typed: str
    """How the user named it on the command line."""
    state: State | None
    facts: dict[str, str]
    pods: tuple[PodSummary, ...]
    rollout: str
    """How many pods are available; empty while the rollout is not complete."""
    autoscaler: AutoscalerStatus | None
    causes: tuple[Cause, ...]
    verdict: str
    """The verdict of the last load test in the build folder; empty if there is none."""

    @property
    def exit_code(self) -> int:
        """0 if the last deploy succeeded, all its pods are available and none of its objects is missing, else 1."""
        missing = any(cause.kind == "missing" for cause in self.causes)
        return 0 if self.state and self.state.phase == "deployed" and self.rollout and not missing else 1

    def to_data(self) -> dict[str, Any]:
        state, autoscaler = self.state, self.autoscaler
        return {
            "schema": SCHEMA,
            "name": self.name,
            "namespace": self.namespace,
            "context": self.context,
            "phase": state.phase if state else "absent",
            "revision": state.current if state else 0,
            "trying": state.trying if state else 0,
            "kept": list(state.good) if state else [],
            "held_by": state.holder if state else "",
            "message": state.message if state else "",
            "facts": self.facts,
            "complete": bool(self.rollout),
            "pods": [vars(pod) for pod in self.pods],
            "autoscaler": autoscaler.text if autoscaler else "",
            "scaling_blocked": autoscaler.blocked if autoscaler else "",
            "reasons": [cause.to_data() for cause in self.causes],
            "verdict": self.verdict,
        }

    def to_text(self) -> str:
        """The status for people: a line for each fact, pod and cause."""
        state, where = self.state, f"{self.name} in {self.namespace} (context {self.context})"
        if state is None:
            return f"{where}: not deployed"
        lines = [f"{where}: {_phase(state, self.typed)}"]
        facts = self.facts
        lines += [f"  {key:<11}{facts[key]}" for key in ("version", "image", "patched") if key in facts]
        lines += [f"  {key:<11}{facts[key][:_SHA]}…" for key in ("package", "evidence") if key in facts]
        lines += [f"  pods       {self.rollout or 'not all available'}"]
        lines += [f"    {pod}" for pod in self.pods]
        if autoscaler := self.autoscaler:
            lines += [f"  autoscaler {autoscaler.text}"]
            lines += [f"    {autoscaler.blocked}"] if autoscaler.blocked else []
        lines += [f"  verdict    {self.verdict}"] if self.verdict else []
        lines += [f"  kept       {', '.join(map(str, state.good))}"] if state.good else []
        lines += [f"  message    {state.message}"] if state.message else []
        lines += [f"  {cause.with_hint()}" for cause in self.causes]
        return "\n".join(lines)


def read_status(placement: Placement, folder: Path) -> ServiceStatus:
    """Reads the status of a release, and the last verdict from its build folder, if there is one."""
    cluster, store = placement.cluster, placement.store
    state = store.load()
    revision = store.read_revision(state.trying or state.current) if state else None
    deployment = next((ref for ref in state.objects if ref.kind == "Deployment"), None) if state else None
    view = read_view(cluster, deployment) if deployment else None
    facts = revision.facts if revision else {}
    wanted, causes = view.deployment["spec"].get("replicas", 1) if view else 0, tuple(find_causes(view)) if view else ()
    if state and deployment and not wanted:
        kind, text = ("empty", describe_empty(deployment, state.objects)) if view else ("missing", "does not exist")
        causes = (Cause(kind, str(deployment), text),)
    if state and revision and state.phase == "deployed":
        causes += (*_missing(cluster, state, revision), *_changed(revision, view, placement.typed))
    return ServiceStatus(
        name=placement.name,
        namespace=placement.namespace,
        context=cluster.context,
        typed=placement.typed,
        state=state,
        facts=facts,
        pods=tuple(summarise_pods(view)) if view else (),
        rollout=availability(view.deployment) if view and wanted else "",
        autoscaler=read_autoscaler(cluster, deployment) if deployment else None,
        causes=causes,
        verdict=_verdict(folder, facts),
    )


def _missing(cluster: Cluster, state: State, revision: Revision) -> Iterator[Cause]:
    """The objects of a revision that were applied and that somebody deleted; of the Deployment, the pods tell."""

    def is_missing(ref: Ref) -> bool:
        try:
            return cluster.get(ref) is None
        except ApiError as err:
            if err.status != 403:
                raise
            return False

    applied = [ref for ref in map(Ref.of, revision.documents) if ref in state.objects]
    refs = [ref for ref in applied if ref.kind != "Deployment"]
    with ThreadPoolExecutor(8) as pool:
        missing = list(pool.map(is_missing, refs))
    for ref in compress(refs, missing):
        yield Cause("missing", str(ref), "does not exist", hint="marina deploy SPEC creates it again")


def _changed(revision: Revision, view: DeploymentView | None, typed: str) -> Iterator[Cause]:
    """The containers that run another image than that of the revision, because somebody changed the Deployment; not
    those whose image is still Marina's own field, as after a webhook has written the name of a mirror into it."""
    stored = next((document for document in revision.documents if document["kind"] == "Deployment"), None)
    if view is None or stored is None:
        return
    images, live, ours = _images(stored), _images(view.deployment), _owned_containers(view.deployment)
    for name, image in images.items():
        if live.get(name, image) != image and "f:image" not in ours.get(f'k:{{"name":"{name}"}}', {}):
            text = f"container `{name}` has image `{live[name]}`, revision {revision.number} has `{image}`"
            hint = f"marina rollback {typed} --to {revision.number} --force-conflicts sets it back"
            yield Cause("changed", f"Deployment {stored['metadata']['name']}", text, hint=hint)


def _owned_containers(deployment: Document) -> dict[str, Any]:
    """The fields of each container that Marina owns."""
    owned = owned_fields(deployment) or {}
    for key in ("f:spec", "f:template", "f:spec", "f:containers"):
        owned = owned.get(key, {})
    return owned


def _images(deployment: Document) -> dict[str, str]:
    containers = deployment["spec"]["template"]["spec"]["containers"]
    return {container["name"]: container.get("image", "") for container in containers}


def _phase(state: State, typed: str) -> str:
    number = state.trying or state.current
    named = f"revision {number}" if number else "the first revision"
    if state.holder:
        changed = f"{named} is being changed by {state.holder}"
        return f"{changed}, unless that was killed: it holds the release until {state.until} by its clock"
    if state.phase == "deployed":
        return f"revision {state.current}"
    if state.phase == "deleting":
        return f"partly deleted: marina delete {typed} finishes it"
    before = f"; the last one that became ready is {state.current}" if state.current else ""
    return f"{named} {state.phase}{before}"


def _verdict(folder: Path, facts: dict[str, str]) -> str:
    with suppress(OSError, ValueError, KeyError, TypeError):
        data = json.loads((folder / "verdict.json").read_text(encoding="utf-8"))
        tested = str(data["tested"].get("package") or "")
        text = f"{data['verdict']['status']} at {data['at']}"
        deployed = facts.get("package", "")
        return text if tested and tested == deployed else f"{text}, of another package than the one deployed"
    return ""
