"""Server-side apply of documents: first a dry run of all, then one by one, each after those that it needs; and the
deletion of objects that are no longer among them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from marina.config.errors import Refused
from marina.config.progress import Progress
from marina.k8s.cluster import ApiError, Cluster, Document, FieldConflict, Ref
from marina.k8s.rollout.diff import FieldChange, field_changes, is_of_others, owned_fields
from marina.k8s.rollout.wait import describe_empty

# Objects come after those they need: pods after their account, configuration and policies, autoscalers after their
# target.
_ORDER = (
    *("Namespace", "ServiceAccount", "Secret", "ConfigMap", "PersistentVolumeClaim", "NetworkPolicy", "Service"),
    *("Deployment", "PodDisruptionBudget", "HorizontalPodAutoscaler", "ScaledObject"),
)
AUTOSCALERS = ("HorizontalPodAutoscaler", "ScaledObject")
_HANDOVER = "marina-handover"
_DRY_RUN_TRIES = 3

Action = Literal["create", "change", "none", "unknown"]


@dataclass(frozen=True)
class ObjectChange:
    """What applying one document did, or would do."""

    ref: Ref
    action: Action
    fields: tuple[FieldChange, ...] = ()
    warnings: tuple[str, ...] = ()

    def to_data(self) -> dict[str, Any]:
        data: dict[str, Any] = {"object": str(self.ref), "action": self.action}
        return data | {"fields": list(map(str, self.fields)), "warnings": list(self.warnings)}


@dataclass(frozen=True)
class DryRun:
    """What applying all documents would do."""

    changes: tuple[ObjectChange, ...]
    conflicts: tuple[tuple[Ref, FieldConflict], ...] = ()
    refused: tuple[str, ...] = ()

    @property
    def changing(self) -> list[ObjectChange]:
        return [change for change in self.changes if change.action != "none"]

    def check(self) -> None:
        """Raises Refused with every conflict and every refusal, so that the user can fix them all at once."""
        lines = [f"{ref}: {conflict}" for ref, conflict in self.conflicts]
        lines += self.refused
        if lines:
            hint = "`--force-conflicts` takes these fields over; or leave them to their owners, and out of the spec"
            raise Refused("nothing was changed:\n  " + "\n  ".join(lines), hint=hint if self.conflicts else None)


def autoscaler_minimum(documents: Iterable[Document]) -> int | None:
    """The least number of pods of the documents' autoscaler; None if there is no autoscaler."""
    for document in documents:
        if document["kind"] in AUTOSCALERS:
            spec = document["spec"]
            return int(spec.get("minReplicas") or spec.get("minReplicaCount") or 1)
    return None


def in_apply_order(documents: Iterable[Document]) -> list[Document]:
    """The documents in the order of applying; kinds that no other needs come last."""

    def place(document: Document) -> tuple[int, str, str]:
        return _rank(document["kind"]), document["kind"], document["metadata"]["name"]

    return sorted(documents, key=place)


def dry_run_all(
    cluster: Cluster, documents: Iterable[Document], surplus: Iterable[Ref], *, force: bool = False
) -> DryRun:
    """Asks the server what applying all documents would do; changes nothing. `surplus` is what would be deleted: only
    with an autoscaler in it, the number of pods that somebody scaled to is Marina's to change."""
    documents, surplus = in_apply_order(documents), list(surplus)
    spaces = (Ref.of(document) for document in documents if document["kind"] == "Namespace")
    missing = {space.name for space in spaces if cluster.get(space) is None}
    changes: list[ObjectChange] = []
    conflicts: list[tuple[Ref, FieldConflict]] = []
    refused: list[str] = []
    taken_over = autoscaler_minimum(documents) is None and any(ref.kind in AUTOSCALERS for ref in surplus)
    for document in documents:
        ref = Ref.of(document)
        if ref.namespace in missing:
            # The server refuses any dry run in a namespace that does not exist yet.
            changes.append(ObjectChange(ref, "create"))
            continue
        try:
            changes.append(_dry_run(cluster, document, documents, force=force))
        except Refused as err:
            refused.append(err.message)
        except ApiError as err:
            if not force and err.conflicts and not (taken_over and _left_by_autoscaler(err.conflicts)):
                conflicts += [(ref, conflict) for conflict in err.conflicts]
            elif err.conflicts:
                changes.append(_dry_run(cluster, document, documents, force=True))
            elif _knows_no_dry_run(err):
                changes.append(ObjectChange(ref, "unknown", warnings=(err.message,)))
            else:
                refused.append(err.message)
    refused += filter(None, (_refused_deletion(cluster, ref) for ref in surplus))
    return DryRun(tuple(changes), tuple(conflicts), tuple(refused))


def apply(cluster: Cluster, document: Document, *, force: bool = False, minimum: int | None = None) -> ObjectChange:
    """Applies one document and compares what the server stored before and after. `minimum` is the least number of pods
    of the autoscaler; None if there is no autoscaler."""
    ref = Ref.of(document)
    before = cluster.get(ref)
    if before is not None and _drops_replicas(document, before):
        _hold_replicas(cluster, document, before["spec"]["replicas"])
    try:
        applied = cluster.apply(document, force=force)
    except ApiError as err:
        # A number that somebody set after the dry run must not keep a failed deploy from going back.
        if minimum is not None or not _left_by_autoscaler(err.conflicts):
            if err.conflicts:
                err.message = f"{ref}: {', '.join(map(str, err.conflicts))}; `--force-conflicts` takes them over"
            raise
        applied = cluster.apply(document, force=True)
    if before is None:
        if document["kind"] == "Deployment" and minimum is not None and "replicas" not in document["spec"]:
            # An autoscaler may take a minute to notice that there is only one pod.
            _hold_replicas(cluster, document, minimum)
            cluster.disown(ref, _HANDOVER)
        return ObjectChange(ref, "create", warnings=applied.warnings)
    if owned_fields(applied.document, _HANDOVER) is not None:
        cluster.disown(ref, _HANDOVER)
    same = before["metadata"]["resourceVersion"] == applied.document["metadata"]["resourceVersion"]
    fields = () if same else tuple(field_changes(before, applied.document))
    return ObjectChange(ref, "change" if fields else "none", fields, applied.warnings)


def prune_objects(cluster: Cluster, refs: Iterable[Ref], progress: Progress) -> tuple[str, ...]:
    """Deletes those of these objects that Marina still manages, in the reverse order of applying, and returns their
    names."""
    deleted = []
    for ref in sorted(refs, key=lambda ref: (_rank(ref.kind), ref.name), reverse=True):
        document = cluster.get(ref)
        if document and owned_fields(document) is None:
            progress.say(f"  {ref}: not deleted: marina no longer manages it")
        elif document and cluster.delete(ref, uid=document["metadata"]["uid"]):
            progress.say(f"  {ref}: {_ending(cluster.get(ref)) or 'deleted'}")
            deleted.append(str(ref))
        else:
            progress.say(f"  {ref}: {_ending(document) or 'already gone'}")
    return tuple(deleted)


def _ending(document: Document | None) -> str:
    """What an object waits for that somebody deleted; empty for any other, and for one that is gone."""
    metadata = (document or {}).get("metadata", {})
    if not metadata.get("deletionTimestamp"):
        return ""
    return f"is being deleted, and waits for {', '.join(metadata.get('finalizers') or ['its end'])}"


def _dry_run(cluster: Cluster, document: Document, documents: Iterable[Document], *, force: bool) -> ObjectChange:
    ref = Ref.of(document)
    for _ in range(_DRY_RUN_TRIES):
        if (before := cluster.get(ref)) is None:
            return ObjectChange(ref, "create", warnings=cluster.apply(document, force=force, dry_run=True).warnings)
        if ending := _ending(before):
            raise Refused(f"{ref}: {ending}; what is applied now would go with it")
        if ref.kind == "Deployment" and "replicas" not in document["spec"] and before["spec"].get("replicas") == 0:
            # No autoscaler starts the first pod, so what is applied now could not be seen to serve.
            raise Refused(f"{ref} {describe_empty(ref, map(Ref.of, documents))}")
        applied = cluster.apply(document, force=force, dry_run=True)
        # If a controller, for one, wrote the object between the two reads, its changes would count as ours; if somebody
        # deleted it, there is no version.
        if before["metadata"]["resourceVersion"] == applied.document["metadata"].get("resourceVersion"):
            break
    assert before is not None
    fields = tuple(field_changes(before, applied.document))
    if is_of_others(before, applied.document, document):
        fields = ()
    if _drops_replicas(document, before):
        fields = tuple(difference for difference in fields if difference.field != "spec.replicas")
    return ObjectChange(ref, "change" if fields else "none", fields, applied.warnings)


def _refused_deletion(cluster: Cluster, ref: Ref) -> str:
    """Why the server would not delete an object that Marina manages; empty if it would."""
    try:
        document = cluster.get(ref)
        if document and owned_fields(document) is not None:
            cluster.delete(ref, uid=document["metadata"]["uid"], dry_run=True)
    except ApiError as err:
        return "" if _knows_no_dry_run(err) else err.message
    return ""


def _knows_no_dry_run(err: ApiError) -> bool:
    """Whether a webhook refused because it cannot tell what it would do."""
    return "dry run" in err.message or "dry-run" in err.message


def _left_by_autoscaler(conflicts: list[FieldConflict]) -> bool:
    """Whether the only conflict is the number of replicas that an autoscaler, or `kubectl scale`, left."""
    return bool(conflicts) and all(conflict.autoscaled or conflict.manager == _HANDOVER for conflict in conflicts)


def _hold_replicas(cluster: Cluster, document: Document, replicas: int) -> None:
    """Lets another field manager own the number of pods until an autoscaler writes it for the first time.

    A field that its last owner no longer applies returns to its default, which is one pod.
    https://kubernetes.io/docs/reference/using-api/server-side-apply/#transferring-ownership"""
    metadata = {key: document["metadata"][key] for key in ("name", "namespace")}
    held = {"apiVersion": document["apiVersion"], "kind": document["kind"], "metadata": metadata}
    cluster.apply(held | {"spec": {"replicas": replicas}}, manager=_HANDOVER)


def _drops_replicas(document: Document, before: Document) -> bool:
    """Whether Marina owned `spec.replicas` of a Deployment, and no longer applies it."""
    owned = (owned_fields(before) or {}).get("f:spec", {})
    return document["kind"] == "Deployment" and "replicas" not in document["spec"] and "f:replicas" in owned


def _rank(kind: str) -> int:
    return _ORDER.index(kind) if kind in _ORDER else len(_ORDER)
