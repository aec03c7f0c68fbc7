"""Server-side apply of documents: all on trial first, then in the order in which they need each other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from config.errors import Refused
from config.progress import Progress
from k8s.cluster import ApiError, Cluster, Document, FieldConflict, Ref
from k8s.rollout.diff import Difference, differences, owned_fields

# What others need comes first: a pod needs its account, configuration and network rules; an autoscaler its target.
_ORDER = (
    *("Namespace", "ServiceAccount", "Secret", "ConfigMap", "PersistentVolumeClaim", "NetworkPolicy", "Service"),
    *("Deployment", "PodDisruptionBudget", "HorizontalPodAutoscaler", "ScaledObject"),
)
AUTOSCALERS = ("HorizontalPodAutoscaler", "ScaledObject")
_HANDOVER = "marina-handover"
_LOOKS = 3

Action = Literal["create", "change", "none", "unknown"]


@dataclass(frozen=True)
class Change:
    """What applying one document does, or would do."""

    ref: Ref
    action: Action
    fields: tuple[Difference, ...] = ()
    warnings: tuple[str, ...] = ()

    def to_data(self) -> dict[str, Any]:
        data: dict[str, Any] = {"object": str(self.ref), "action": self.action}
        return data | {"fields": list(map(str, self.fields)), "warnings": list(self.warnings)}


@dataclass(frozen=True)
class Trial:
    """What a whole set would do."""

    changes: tuple[Change, ...]
    conflicts: tuple[tuple[Ref, FieldConflict], ...] = ()
    refused: tuple[tuple[Ref, str], ...] = ()

    @property
    def changing(self) -> list[Change]:
        return [change for change in self.changes if change.action != "none"]

    def check(self) -> None:
        """Refused with every conflict and every refusal, so that a user repairs them in one go."""
        lines = [f"{ref}: {conflict}" for ref, conflict in self.conflicts]
        lines += [f"{ref}: {text}" for ref, text in self.refused]
        if lines:
            hint = "`--force-conflicts` takes these fields over; or leave them to their owners and out of the spec"
            raise Refused("nothing was changed:\n  " + "\n  ".join(lines), hint=hint if self.conflicts else None)


def floor_of(documents: Iterable[Document]) -> int | None:
    """The least number of pods that the documents' autoscaler keeps; None when there is none."""
    for document in documents:
        if document["kind"] in AUTOSCALERS:
            spec = document["spec"]
            return int(spec.get("minReplicas") or spec.get("minReplicaCount") or 1)
    return None


def ordered(documents: Iterable[Document]) -> list[Document]:
    """The documents in the order they are applied; kinds nobody needs come last."""

    def place(document: Document) -> tuple[int, str, str]:
        return _rank(document["kind"]), document["kind"], document["metadata"]["name"]

    return sorted(documents, key=place)


def try_out(cluster: Cluster, documents: Iterable[Document], *, force: bool = False) -> Trial:
    """What applying would do, as the server itself says; nothing is changed."""
    documents = ordered(documents)
    spaces = (Ref.of(document) for document in documents if document["kind"] == "Namespace")
    missing = {space.name for space in spaces if cluster.get(space) is None}
    changes: list[Change] = []
    conflicts: list[tuple[Ref, FieldConflict]] = []
    refused: list[tuple[Ref, str]] = []
    autoscaled = floor_of(documents) is not None
    for document in documents:
        ref = Ref.of(document)
        if ref.namespace in missing:
            # A trial in a namespace that is not there yet is refused whatever is tried.
            changes.append(Change(ref, "create"))
            continue
        try:
            changes.append(_tried(cluster, document, force=force))
        except ApiError as err:
            if not force and err.conflicts and not _left_behind(err.conflicts, autoscaled):
                conflicts += [(ref, conflict) for conflict in err.conflicts]
            elif err.conflicts:
                changes.append(_tried(cluster, document, force=True))
            elif "dry run" in err.message or "dry-run" in err.message:
                changes.append(Change(ref, "unknown", warnings=(err.message,)))
            else:
                refused.append((ref, err.message))
    return Trial(tuple(changes), tuple(conflicts), tuple(refused))


def apply(cluster: Cluster, document: Document, *, force: bool = False, floor: int | None = None) -> Change:
    """Applies one document; what it changed is what the server stored anew. `floor` is the least number of pods that an
    autoscaler keeps, None where there is no autoscaler."""
    ref = Ref.of(document)
    before = cluster.get(ref)
    if before is not None and _gives_up_replicas(document, before):
        _hold_replicas(cluster, document, before["spec"]["replicas"])
    try:
        applied = cluster.apply(document, force=force)
    except ApiError as err:
        if not _left_behind(err.conflicts, floor is not None):
            raise
        applied = cluster.apply(document, force=True)
    if before is None:
        if document["kind"] == "Deployment" and floor is not None and "replicas" not in document["spec"]:
            # An autoscaler may need a minute to notice that there is one pod only.
            _hold_replicas(cluster, document, floor)
            cluster.disown(ref, _HANDOVER)
        return Change(ref, "create", warnings=applied.warnings)
    if owned_fields(applied.document, _HANDOVER) is not None:
        cluster.disown(ref, _HANDOVER)
    same = before["metadata"]["resourceVersion"] == applied.document["metadata"]["resourceVersion"]
    fields = () if same else tuple(differences(before, applied.document))
    return Change(ref, "change" if fields else "none", fields, applied.warnings)


def prune(cluster: Cluster, refs: Iterable[Ref], progress: Progress) -> tuple[str, ...]:
    """Deletes what this kit applied of some objects, the last of the order first; what was deleted."""
    deleted = []
    for ref in sorted(refs, key=lambda ref: (_rank(ref.kind), ref.name), reverse=True):
        result = _deleted(cluster, ref)
        progress.say(f"  {ref}: {result}")
        if result == "deleted":
            deleted.append(str(ref))
    return tuple(deleted)


def _deleted(cluster: Cluster, ref: Ref) -> str:
    document = cluster.get(ref)
    if document is None:
        return "gone"
    if owned_fields(document) is None:
        return "left: marina does not manage it any more"
    return "deleted" if cluster.delete(ref, uid=document["metadata"]["uid"]) else "gone"


def _tried(cluster: Cluster, document: Document, *, force: bool) -> Change:
    ref = Ref.of(document)
    for _ in range(_LOOKS):
        if (before := cluster.get(ref)) is None:
            return Change(ref, "create", warnings=cluster.apply(document, force=force, dry_run=True).warnings)
        applied = cluster.apply(document, force=force, dry_run=True)
        # Between the two looks somebody may have written it, such as a controller; then this compares strangers.
        if before["metadata"]["resourceVersion"] == applied.document["metadata"]["resourceVersion"]:
            break
    assert before is not None
    fields = tuple(differences(before, applied.document))
    if _gives_up_replicas(document, before):
        fields = tuple(difference for difference in fields if difference.field != "spec.replicas")
    return Change(ref, "change" if fields else "none", fields, applied.warnings)


def _left_behind(conflicts: list[FieldConflict], autoscaled: bool) -> bool:
    """Whether all that stands in the way is the number of replicas that an autoscaler of ours left behind."""
    theirs = all(conflict.autoscaled or conflict.manager == _HANDOVER for conflict in conflicts)
    return bool(conflicts) and not autoscaled and theirs


def _hold_replicas(cluster: Cluster, document: Document, replicas: int) -> None:
    """Has another manager hold the number of pods until an autoscaler writes it for the first time.

    A field that its last owner no longer applies goes back to its default, which is one pod.
    https://kubernetes.io/docs/reference/using-api/server-side-apply/#transferring-ownership
    """
    metadata = {key: document["metadata"][key] for key in ("name", "namespace")}
    held = {"apiVersion": document["apiVersion"], "kind": document["kind"], "metadata": metadata}
    cluster.apply(held | {"spec": {"replicas": replicas}}, manager=_HANDOVER)


def _gives_up_replicas(document: Document, before: Document) -> bool:
    owned = (owned_fields(before) or {}).get("f:spec", {})
    return document["kind"] == "Deployment" and "replicas" not in document["spec"] and "f:replicas" in owned


def _rank(kind: str) -> int:
    return _ORDER.index(kind) if kind in _ORDER else len(_ORDER)
