"""Applies one revision, waits for its pods and sends one of them the sample."""

from collections.abc import Callable, Iterable, Sequence

from marina.config.errors import InputError, MarinaError
from marina.config.progress import Progress
from marina.k8s.cluster import ApiError, Cluster, Document, Ref
from marina.k8s.rollout.apply import (
    AUTOSCALERS,
    ObjectChange,
    apply,
    autoscaler_minimum,
    describe_empty,
    in_apply_order,
    prune_objects,
)
from marina.k8s.rollout.history import Placement
from marina.k8s.rollout.inference import CanaryRequest, infer
from marina.k8s.rollout.record import RolloutOptions, RolloutRecord
from marina.k8s.rollout.wait import wait

_CANARY_S = 60.0


def apply_and_wait(
    placement: Placement,
    record: RolloutRecord,
    documents: Sequence[Document],
    request: CanaryRequest | None,
    surplus: Iterable[Ref],
    options: RolloutOptions,
    progress: Progress,
    *,
    gate: Callable[[Document], None] | None = None,
) -> None:
    """Applies the documents, waits for the pods and sends the sample. The record tells how it went. `gate` is called
    before the Deployment is applied, and raises a MarinaError if that must not happen."""
    cluster, record.changes = placement.cluster, []
    try:
        # Two autoscalers of one Deployment would work against each other, so the old one is deleted first.
        record.pruned += prune_objects(cluster, [ref for ref in surplus if ref.kind in AUTOSCALERS], progress)
        minimum = autoscaler_minimum(documents)
        for document in in_apply_order(documents):
            if gate and document["kind"] == "Deployment":
                gate(document)
            record.changes.append(apply(cluster, document, force=options.force, minimum=minimum))
            _report(record.changes[-1], progress)
        new = any(change.ref.kind == "Deployment" and change.action == "change" for change in record.changes)
        wait_and_infer(placement, record, documents, request, options, progress, new=new)
        record.error = record.error or _taken_over(cluster, documents)
    except MarinaError as err:
        record.error = err.message
    record.result = "failed" if record.error else record.result


def wait_and_infer(
    placement: Placement,
    record: RolloutRecord,
    documents: Iterable[Document],
    request: CanaryRequest | None,
    options: RolloutOptions,
    progress: Progress,
    *,
    new: bool = False,
) -> None:
    """Waits for the pods of the applied documents, and sends one the sample. `new` is whether their rollout begins."""
    refs = [Ref.of(document) for document in documents]
    deployment = next((ref for ref in refs if ref.kind == "Deployment"), None)
    if deployment is None:
        raise InputError("the manifests hold no Deployment")
    progress.say(f"waiting for {deployment}")
    record.waited = waited = wait(placement.cluster, deployment, progress, timeout_s=options.timeout_s, new=new)
    running = [pod.name for pod in waited.pods if pod.phase == "Running"]
    if not waited.complete:
        record.error = waited.summary
    elif not running:
        record.error = f"{deployment} {describe_empty(deployment, refs)}"
    elif request is None:
        progress.say("note: no sample is available, so no inference is sent")
    else:
        with progress.step("infer the sample"):
            record.canary = infer(placement.cluster, placement.namespace, running[0], request, timeout_s=_CANARY_S)
        if not record.canary.ok:
            record.error = f"the pods are ready, but the inference of the sample failed: {record.canary.answer}"
    record.result = "failed" if record.error else record.result


def _taken_over(cluster: Cluster, documents: Iterable[Document]) -> str:
    """Which fields of the Deployment somebody else set during the wait, such as a controller that undoes changes: then
    what serves is not what was applied. Empty if none, and for the number of pods, which is anybody's."""
    deployment = next(document for document in documents if document["kind"] == "Deployment")
    try:
        cluster.apply(deployment, dry_run=True)
    except ApiError as err:
        fields = [str(conflict) for conflict in err.conflicts if not conflict.autoscaled]
        return f"{Ref.of(deployment)} was changed during the wait: {', '.join(fields)}" if fields else ""
    return ""


def _report(change: ObjectChange, progress: Progress) -> None:
    words = {"create": "created", "change": "changed", "unknown": "applied"}
    if change.action in words:
        progress.say(f"  {change.ref}: {words[change.action]}")
    for warning in change.warnings:
        progress.say(f"    warning: {warning}")
