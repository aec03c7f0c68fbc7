"""Server-side apply of documents: first a dry run of all, then one by one, each after those that it needs; and the
deletion of objects that are no longer among them."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import yaml

from marina.config.errors import Refused
from marina.config.progress import Progress
from marina.k8s.cluster import MANAGER, ApiError, Cluster, Document, FieldConflict, Ref

# Objects come after those they need: pods after their account, configuration and policies, autoscalers after their
# target.
_ORDER = (
    *("Namespace", "ServiceAccount", "Secret", "ConfigMap", "PersistentVolumeClaim", "NetworkPolicy", "Service"),
    *("Deployment", "PodDisruptionBudget", "HorizontalPodAutoscaler", "ScaledObject"),
)
AUTOSCALERS = ("HorizontalPodAutoscaler", "ScaledObject")
_TRIES = 3
# Metadata that the server and its controllers write.
_WRITTEN_BY_SERVER = ("creationTimestamp", "generation", "managedFields", "resourceVersion", "selfLink", "uid")
# Fields that identify an item of a list, like the API's merge keys.
_KEYS = ("name", "containerPort", "port", "mountPath", "topologyKey", "ip", "key")

Action = Literal["create", "change", "none", "unknown"]


@dataclass(frozen=True)
class ObjectChange:
    """What applying one document did, or would do."""

    ref: Ref
    action: Action
    diff: tuple[str, ...] = ()
    """The lines that differ, and a few around them."""
    warnings: tuple[str, ...] = ()

    def to_data(self) -> dict[str, Any]:
        data: dict[str, Any] = {"object": str(self.ref), "action": self.action}
        return data | {"diff": list(self.diff), "warnings": list(self.warnings)}


def autoscaler_minimum(documents: Iterable[Document]) -> int | None:
    """The least number of pods of the documents' autoscaler; None if there is no autoscaler."""
    for document in documents:
        if document["kind"] in AUTOSCALERS:
            spec = document["spec"]
            return int(spec.get("minReplicas") or spec.get("minReplicaCount") or 1)
    return None


def in_apply_order(documents: Iterable[Document]) -> list[Document]:
    """The documents in the order of applying; kinds that no other needs come last."""
    return sorted(documents, key=lambda document: _place(Ref.of(document)))


def dry_run_all(
    cluster: Cluster, documents: Iterable[Document], surplus: Iterable[Ref], *, force: bool = False
) -> list[ObjectChange]:
    """Asks the server what applying all documents would do; changes nothing. Raises Refused with every conflict and
    every refusal, so that the user can mend them all at once. `surplus` is what would be deleted: only with an
    autoscaler in it, the number of pods that somebody scaled to is Marina's to change."""
    documents = in_apply_order(documents)
    spaces = (Ref.of(document) for document in documents if document["kind"] == "Namespace")
    missing = {space.name for space in spaces if cluster.get(space) is None}
    changes: list[ObjectChange] = []
    conflicts: list[str] = []
    refused: list[str] = []
    hints: list[str] = []
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
            if taken_over and _scaled_by_others(err.conflicts):
                changes.append(_dry_run(cluster, document, documents, force=True))
            elif err.conflicts:
                conflicts += [f"{ref}: {conflict}" for conflict in err.conflicts]
            elif "dry run" in err.message or "dry-run" in err.message:
                # A webhook cannot tell what it would do.
                changes.append(ObjectChange(ref, "unknown", warnings=(err.message,)))
            else:
                refused.append(err.message)
                hints += [err.hint] if err.hint else []
    if conflicts or refused:
        if conflicts:
            hints.append(
                "`--force-conflicts` takes these fields over; or leave them to their owners, and out of the spec"
            )
        text = "nothing was changed:\n  " + "\n  ".join([*conflicts, *refused])
        raise Refused(text, hint="\n      ".join(dict.fromkeys(hints)) or None)
    return changes


def apply(cluster: Cluster, document: Document, *, force: bool = False, minimum: int | None = None) -> ObjectChange:
    """Applies one document and compares what the server stored before and after. `minimum` is the least number of pods
    of the autoscaler; None if there is no autoscaler."""
    ref = Ref.of(document)
    for _ in range(_TRIES):
        before = cluster.get(ref)
        try:
            applied = cluster.apply(_scaled(document, before, minimum), force=force)
            break
        except ApiError as err:
            # Somebody scaled meanwhile. That must not keep a failed deploy from going back: a number of ours is forced,
            # and theirs is read again.
            if not _scaled_by_others(err.conflicts):
                if err.conflicts:
                    err.message = f"{ref}: {', '.join(map(str, err.conflicts))}; `--force-conflicts` takes them over"
                raise
            force, failed = force or "replicas" in document["spec"], err
    else:
        raise failed
    if before is None:
        return ObjectChange(ref, "create", warnings=applied.warnings)
    same = before["metadata"]["resourceVersion"] == applied.document["metadata"]["resourceVersion"]
    diff = () if same else _diff(before, applied.document)
    return ObjectChange(ref, "change" if diff else "none", diff, applied.warnings)


def prune_objects(cluster: Cluster, refs: Iterable[Ref], progress: Progress) -> tuple[str, ...]:
    """Deletes those of these objects that Marina still manages, in the reverse order of applying, and returns their
    names."""
    deleted = []
    for ref in sorted(refs, key=_place, reverse=True):
        document = cluster.get(ref)
        if document and owned_fields(document) is None:
            progress.say(f"  {ref}: not deleted: marina no longer manages it")
        elif document and cluster.delete(ref, uid=document["metadata"]["uid"]):
            progress.say(f"  {ref}: {'is being deleted' if cluster.get(ref) else 'deleted'}")
            deleted.append(str(ref))
        else:
            progress.say(f"  {ref}: {'is being deleted already' if document else 'already gone'}")
    return tuple(deleted)


def manages(cluster: Cluster, ref: Ref) -> bool:
    """Whether an object exists and Marina still owns fields of it."""
    document = cluster.get(ref)
    return document is not None and owned_fields(document) is not None


def owned_fields(document: Document) -> dict[str, Any] | None:
    """The fields that Marina owns by applying them, as `fieldsV1`; None if it never applied the object."""
    for entry in document["metadata"].get("managedFields") or []:
        if entry.get("manager") == MANAGER and entry.get("operation") == "Apply" and not entry.get("subresource"):
            fields: dict[str, Any] = entry.get("fieldsV1") or {}
            return fields
    return None


def describe_empty(deployment: Ref, objects: Iterable[Ref]) -> str:
    """What to do about a Deployment that wants no pod; `objects` are those of its release."""
    kubectl = f"kubectl -n {deployment.namespace}"
    for ref in objects:
        if ref.kind == "ScaledObject":
            # It would undo what `kubectl scale` does.
            paused = "autoscaling.keda.sh/paused-replicas"
            start = f"{kubectl} annotate --overwrite scaledobject {ref.name} {paused}=1"
            return f"is scaled to 0 by KEDA, so nothing serves: `{start}`; once it is deployed, `{paused}-` ends that"
    return f"is scaled to 0, so nothing serves: `{kubectl} scale deployment {deployment.name} --replicas 1`"


def _dry_run(cluster: Cluster, document: Document, documents: Iterable[Document], *, force: bool) -> ObjectChange:
    ref = Ref.of(document)
    before = cluster.get(ref)
    if before is None:
        return ObjectChange(ref, "create", warnings=cluster.apply(document, force=force, dry_run=True).warnings)
    if before["metadata"].get("deletionTimestamp"):
        waits = ", ".join(before["metadata"].get("finalizers") or ["its end"])
        raise Refused(f"{ref}: is being deleted, and waits for {waits}; what is applied now would go with it")
    if ref.kind == "Deployment" and "replicas" not in document["spec"] and before["spec"].get("replicas") == 0:
        # No autoscaler starts the first pod, so what is applied now could not be seen to serve.
        raise Refused(f"{ref} {describe_empty(ref, map(Ref.of, documents))}")
    applied = cluster.apply(_scaled(document, before, None), force=force, dry_run=True)
    # A webhook may write something else each time, such as the time, and a controller at any time.
    same = _named(before, document) == _named(applied.document, document)
    diff = () if same and _owned(before) == _owned(applied.document) else _diff(before, applied.document)
    return ObjectChange(ref, "change" if diff else "none", diff, applied.warnings)


def _diff(before: Document, after: Document) -> tuple[str, ...]:
    """The lines that differ, except of fields that the server writes by itself."""
    old, new = (yaml.safe_dump(_own_fields(document), width=1000).splitlines() for document in (before, after))
    lines = tuple(difflib.unified_diff(old, new, lineterm="", n=2))[2:]
    if not lines and _owned(before) != _owned(after):
        return ("only which fields marina owns",)
    return lines


def _own_fields(document: Document) -> Document:
    metadata = {key: value for key, value in document["metadata"].items() if key not in _WRITTEN_BY_SERVER}
    return {key: value for key, value in document.items() if key not in ("metadata", "status")} | {"metadata": metadata}


def _named(value: Any, document: Any) -> Any:
    """The part of a stored value that a document names."""
    if isinstance(value, dict) and isinstance(document, dict):
        return {key: _named(value.get(key), document[key]) for key in document}
    if isinstance(value, list) and isinstance(document, list):
        for key in _KEYS:
            if all(isinstance(item, dict) and key in item for item in value + document):
                items = {item[key]: item for item in document}
                return [_named(item, items[item[key]]) for item in value if item[key] in items]
    return value


def _scaled_by_others(conflicts: list[FieldConflict]) -> bool:
    """Whether the only conflict is the number of pods that an autoscaler, or `kubectl scale`, wrote."""
    return bool(conflicts) and all(conflict.autoscaled for conflict in conflicts)


def _scaled(document: Document, before: Document | None, minimum: int | None) -> Document:
    """A Deployment whose number of pods is not Marina's, with the number that it has, or begins with. Without any, one
    that Marina owned before would return to its default of one pod, and a new one would wait for its autoscaler.
    https://kubernetes.io/docs/reference/using-api/server-side-apply/#transferring-ownership"""
    present = before["spec"].get("replicas") if before and document["kind"] == "Deployment" else minimum
    if document["kind"] != "Deployment" or "replicas" in document["spec"] or present is None:
        return document
    return document | {"spec": document["spec"] | {"replicas": present}}


def _owned(document: Document) -> Document | None:
    """The fields that Marina owns, but the number of pods, which an autoscaler takes whenever it writes it."""
    fields = owned_fields(document)
    if fields and "f:replicas" in fields.get("f:spec", {}):
        return fields | {"f:spec": {key: below for key, below in fields["f:spec"].items() if key != "f:replicas"}}
    return fields


def _place(ref: Ref) -> tuple[int, str, str]:
    return _ORDER.index(ref.kind) if ref.kind in _ORDER else len(_ORDER), ref.kind, ref.name
