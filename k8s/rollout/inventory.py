"""Which objects belong to a deployment: all that were ever applied, and those that a new revision leaves out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from config.progress import Progress
from k8s.cluster import Document, Ref
from k8s.rollout.apply import prune
from k8s.rollout.history import State, Store
from k8s.rollout.hold import Hold
from k8s.rollout.placement import Placement


def all_objects(state: State, documents: Iterable[Document]) -> tuple[Ref, ...]:
    """All that was applied, and all that is about to be: written first, so that nothing is ever lost sight of."""
    refs = {Ref.of(document) for document in documents}
    return tuple(sorted({*_absent(state, refs), *refs}))


def outgoing(store: Store, state: State, documents: Iterable[Document], good: tuple[int, ...]) -> list[Ref]:
    """What was applied once and is in the documents no longer. A Namespace is never pruned, nor is configuration that
    one of the `good` revisions names: `kubectl rollout undo` must find it."""
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
    """The revision serves: what it leaves out is deleted, the state says so, old revisions are forgotten. What was
    deleted."""
    store, state = placement.store, hold.state
    surplus = outgoing(store, state, documents, good)
    pruned = prune(placement.cluster, surplus, progress)
    objects = tuple(ref for ref in all_objects(state, documents) if ref not in surplus)
    kept = tuple(revision for revision in undone if revision in good)
    hold.save(
        phase="deployed", current=number, trying=0, good=good, undone=kept, objects=objects, message=message, holder=""
    )
    store.forget(keep=good)
    return pruned


def _absent(state: State, refs: set[Ref]) -> list[Ref]:
    return [known for known in state.objects if not any(known.same_object(ref) for ref in refs)]


def _configuration(store: Store, numbers: tuple[int, ...]) -> set[Ref]:
    revisions = filter(None, map(store.read, numbers))
    refs = (Ref.of(document) for revision in revisions for document in revision.documents)
    return {ref for ref in refs if ref.kind in ("ConfigMap", "Secret")}
