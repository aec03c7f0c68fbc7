"""From the documents of one revision to pods that answer, and what came of it as one value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from config.errors import InputError, MarinaError
from config.progress import Progress
from config.render import Ports
from k8s.cluster import Document, Ref
from k8s.rollout.apply import AUTOSCALERS, Change, apply, floor_of, ordered, prune
from k8s.rollout.inference import Canary, CanaryRequest, infer
from k8s.rollout.placement import Placement, RolloutOptions
from k8s.rollout.wait import WaitResult, wait

_CANARY_S = 60.0


@dataclass(frozen=True)
class Transition:
    """What applying, waiting and asking came to."""

    changes: tuple[Change, ...] = ()
    pruned: tuple[str, ...] = ()
    waited: WaitResult | None = None
    canary: Canary | None = None
    error: str = ""
    """Why the documents are not what serves now; empty when they are."""


def apply_and_wait(
    placement: Placement,
    documents: Sequence[Document],
    request: CanaryRequest | None,
    surplus: Iterable[Ref],
    options: RolloutOptions,
    progress: Progress,
) -> Transition:
    """Applies, waits for the pods and asks them; an error on the way is part of the outcome."""
    changes: list[Change] = []
    pruned: tuple[str, ...] = ()
    try:
        # Two autoscalers of one Deployment would work against each other, so the one that goes, goes first.
        pruned = prune(placement.cluster, [ref for ref in surplus if ref.kind in AUTOSCALERS], progress)
        floor = floor_of(documents)
        for document in ordered(documents):
            change = apply(placement.cluster, document, force=options.force, floor=floor)
            changes.append(change)
            _report(change, progress)
        serving = wait_and_infer(placement, documents, request, options, progress)
    except MarinaError as err:
        return Transition(tuple(changes), pruned, error=err.message)
    return replace(serving, changes=tuple(changes), pruned=pruned)


def wait_and_infer(
    placement: Placement,
    documents: Iterable[Document],
    request: CanaryRequest | None,
    options: RolloutOptions,
    progress: Progress,
) -> Transition:
    """Waits for the pods of what is applied already, and asks them."""
    documents = list(documents)
    deployment = deployment_in(documents)
    progress.say(f"waiting for {deployment}")
    waited = wait(placement.cluster, deployment, progress, timeout_s=options.timeout_s)
    if not waited.complete:
        return Transition(waited=waited, error=waited.why)
    if request is None:
        progress.say("note: no sample is known, so no inference is sent")
        return Transition(waited=waited)
    running = [pod.name for pod in waited.pods if pod.phase == "Running"]
    with progress.step("infer the sample"):
        canary = infer(
            placement.cluster, placement.namespace, service_in(documents), running, request, timeout_s=_CANARY_S
        )
    if canary.ok and not canary.package:
        progress.say("note: no pod could be asked which package it serves; `pods/proxy` allows it")
    error = "" if canary.ok else f"the pods are ready, but the sample was not answered as it must be: {canary.answer}"
    return Transition(waited=waited, canary=canary, error=error)


def deployment_in(documents: Iterable[Document]) -> Ref:
    """The Deployment whose pods serve."""
    refs = [Ref.of(document) for document in documents if document["kind"] == "Deployment"]
    if len(refs) != 1:
        raise InputError(f"the manifests hold {len(refs)} Deployments, allowed: 1")
    return refs[0]


def service_in(documents: Iterable[Document]) -> str:
    """The Service through which clients come."""
    for document in documents:
        ports = document["spec"].get("ports", []) if document["kind"] == "Service" else []
        if any(port["port"] == Ports().inference for port in ports):
            return str(document["metadata"]["name"])
    raise InputError(f"the manifests hold no Service with port {Ports().inference}")


def _report(change: Change, progress: Progress) -> None:
    words = {"create": "created", "change": "changed", "unknown": "applied"}
    if change.action in words:
        progress.say(f"  {change.ref}: {words[change.action]}")
    for difference in change.fields:
        progress.say(f"    {difference}")
    for warning in change.warnings:
        progress.say(f"    warning: {warning}")
