"""The objects of a release: all that were ever applied, and those that a new revision no longer has."""

from collections.abc import Iterable, Sequence

from marina.config.errors import ClusterError
from marina.config.progress import Progress
from marina.k8s.cluster import Document, Ref
from marina.k8s.rollout.apply import AUTOSCALERS, prune_objects
from marina.k8s.rollout.history import State, Store
from marina.k8s.rollout.hold import Hold
from marina.k8s.rollout.placement import Placement


def all_objects(state: State, documents: Iterable[Document]) -> tuple[Ref, ...]:
    """Every object that was applied or is about to be. It is stored before applying, so that none is forgotten."""
    refs = {Ref.of(document) for document in documents}
    return tuple(sorted({*_absent(state, refs), *refs}))


def objects_to_prune(store: Store, state: State, documents: Iterable[Document], good: tuple[int, ...]) -> list[Ref]:
    """The objects that were applied before and are no longer in the documents. Never a Namespace, nor configuration of
    one of the `good` revisions, which `kubectl rollout undo` needs."""
    absent = _absent(state, {Ref.of(document) for document in documents})
    kept = _configuration(store, good) if absent else set()
    return [ref for ref in absent if ref.kind != "Namespace" and ref not in kept]


def mark_deployed(
    placement: Placement,
    hold: Hold,
    number: int,
    documents: Sequence[Document],
    progress: Progress,
    *,
    good: tuple[int, ...],
    undone: tuple[int, ...],
    message: str = "",
) -> tuple[str, ...]:
    """Finishes a deploy once the revision serves: deletes objects it no longer has, writes the state, and deletes old
    revisions. Returns the names of the deleted objects."""
    # Somebody else may have taken the release while this machine slept; their objects must not be deleted.
    store, state = placement.store, hold.save()
    surplus = objects_to_prune(store, state, documents, good)
    # Autoscalers went before the revision was applied.
    pruned = prune_objects(placement.cluster, [ref for ref in surplus if ref.kind not in AUTOSCALERS], progress)
    objects = tuple(ref for ref in all_objects(state, documents) if ref not in surplus)
    kept = tuple(revision for revision in undone if revision in good)
    hold.save(
        phase="deployed", current=number, trying=0, good=good, undone=kept, objects=objects, message=message, holder=""
    )
    try:
        store.delete_revisions(keep=good)
    except ClusterError as err:
        progress.say(f"note: revisions that are not kept stay until the next deploy: {err.message}")
    return pruned


def _absent(state: State, refs: set[Ref]) -> list[Ref]:
    return [known for known in state.objects if not any(known.same_object(ref) for ref in refs)]


def _configuration(store: Store, numbers: tuple[int, ...]) -> set[Ref]:
    revisions = filter(None, map(store.read_revision, numbers))
    refs = (Ref.of(document) for revision in revisions for document in revision.documents)
    return {ref for ref in refs if ref.kind in ("ConfigMap", "Secret")}
