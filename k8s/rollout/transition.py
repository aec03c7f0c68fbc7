"""Applies one revision, waits for its pods and sends them the sample; the result is one value."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from marina.config.errors import ClusterError, InputError, MarinaError
from marina.config.progress import Progress
from marina.config.render import Ports
from marina.k8s.cluster import ApiError, Cluster, Document, Ref
from marina.k8s.rollout.apply import AUTOSCALERS, ObjectChange, apply, autoscaler_minimum, in_apply_order, prune_objects
from marina.k8s.rollout.inference import Canary, CanaryRequest, infer
from marina.k8s.rollout.placement import Placement, RolloutOptions
from marina.k8s.rollout.wait import WaitResult, describe_empty, wait

_CANARY_S = 60.0


@dataclass(frozen=True)
class Transition:
    """The result of applying, waiting and the inference."""

    changes: tuple[ObjectChange, ...] = ()
    pruned: tuple[str, ...] = ()
    waited: WaitResult | None = None
    canary: Canary | None = None
    error: str = ""
    """Why the revision does not serve; empty if it does."""


def apply_and_wait(
    placement: Placement,
    documents: Sequence[Document],
    request: CanaryRequest | None,
    surplus: Iterable[Ref],
    options: RolloutOptions,
    progress: Progress,
) -> Transition:
    """Applies the documents, waits for the pods and sends them the sample. Errors are part of the result."""
    changes: list[ObjectChange] = []
    pruned: tuple[str, ...] = ()
    try:
        # Two autoscalers of one Deployment would work against each other, so the old one is deleted first.
        pruned = prune_objects(placement.cluster, [ref for ref in surplus if ref.kind in AUTOSCALERS], progress)
        minimum = autoscaler_minimum(documents)
        for document in in_apply_order(documents):
            change = apply(placement.cluster, document, force=options.force, minimum=minimum)
            changes.append(change)
            _report(change, progress)
        new = any(change.ref.kind == "Deployment" and change.action == "change" for change in changes)
        serving = wait_and_infer(placement, documents, request, options, progress, new=new)
        if not serving.error:
            serving = replace(serving, error=_taken_over(placement.cluster, documents))
    except MarinaError as err:
        return Transition(tuple(changes), pruned, error=err.message)
    return replace(serving, changes=tuple(changes), pruned=pruned)


def wait_and_infer(
    placement: Placement,
    documents: Iterable[Document],
    request: CanaryRequest | None,
    options: RolloutOptions,
    progress: Progress,
    *,
    new: bool = False,
) -> Transition:
    """Waits for the pods of the applied documents, and sends them the sample. `new` is whether their rollout begins."""
    documents = list(documents)
    deployment = find_deployment(documents)
    progress.say(f"waiting for {deployment}")
    waited = wait(placement.cluster, deployment, progress, timeout_s=options.timeout_s, new=new)
    if not waited.complete:
        return Transition(waited=waited, error=waited.summary)
    if not waited.pods:
        return Transition(waited=waited, error=f"{deployment} {describe_empty(deployment, map(Ref.of, documents))}")
    if request is None:
        progress.say("note: no sample is available, so no inference is sent")
        return Transition(waited=waited)
    running = [pod.name for pod in waited.pods if pod.phase == "Running"]
    with progress.step("infer the sample"):
        canary = infer(
            placement.cluster, placement.namespace, find_service(documents), running, request, timeout_s=_CANARY_S
        )
    if canary.ok and not canary.package:
        progress.say("note: the pods' package was not checked; reading it needs the permission `pods/proxy`")
    error = "" if canary.ok else f"the pods are ready, but the inference of the sample failed: {canary.answer}"
    return Transition(waited=waited, canary=canary, error=error)


def _taken_over(cluster: Cluster, documents: Iterable[Document]) -> str:
    """Which fields of the Deployment somebody else set during the wait, such as a controller that undoes changes: then
    what serves is not what was applied. Empty if none, and for the number of pods, which is anybody's."""
    deployment = next(document for document in documents if document["kind"] == "Deployment")
    try:
        cluster.apply(deployment, dry_run=True)
    except ApiError as err:
        fields = [str(conflict) for conflict in err.conflicts if not conflict.autoscaled]
        return f"{Ref.of(deployment)} was changed during the wait: {', '.join(fields)}" if fields else ""
    except ClusterError:
        pass  # the pods serve, whether this can be asked or not
    return ""


def find_deployment(documents: Iterable[Document]) -> Ref:
    """The reference to the only Deployment."""
    refs = [Ref.of(document) for document in documents if document["kind"] == "Deployment"]
    if len(refs) != 1:
        raise InputError(f"the manifests hold {len(refs)} Deployments, allowed: 1")
    return refs[0]


def find_service(documents: Sequence[Document]) -> str:
    """The Service that clients use, as `NAME:PORT`. A patch may have given its port another number than the pods'."""
    pods = [document["spec"]["template"]["spec"] for document in documents if document["kind"] == "Deployment"]
    containers = [container for pod in pods for container in pod["containers"]]
    ports = [port for container in containers for port in container.get("ports") or []]
    named = {port.get("name"): port["containerPort"] for port in ports}
    for document in documents:
        for port in document["spec"].get("ports") or [] if document["kind"] == "Service" else []:
            target = port.get("targetPort", port["port"])
            if named.get(target, target) == Ports().inference:
                return f"{document['metadata']['name']}:{port['port']}"
    raise InputError(f"the manifests hold no Service that leads to port {Ports().inference} of the pods")


def _report(change: ObjectChange, progress: Progress) -> None:
    words = {"create": "created", "change": "changed", "unknown": "applied"}
    if change.action in words:
        progress.say(f"  {change.ref}: {words[change.action]}")
    for difference in change.fields:
        progress.say(f"    {difference}")
    for warning in change.warnings:
        progress.say(f"    warning: {warning}")
