"""Goes back to a revision that is stored in the cluster, or deletes all of them. Neither the spec nor the package is
needed."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from marina.config.errors import ClusterError, Refused
from marina.config.progress import Progress
from marina.k8s.cluster import Document, Ref
from marina.k8s.rollout.apply import AUTOSCALERS, dry_run_all, prune_objects
from marina.k8s.rollout.history import Placement, Revision, State, identity
from marina.k8s.rollout.hold import Hold, held
from marina.k8s.rollout.preflight import OPTIONAL, check_permissions, unknown_kinds, without_existing_namespace
from marina.k8s.rollout.record import RolloutOptions, RolloutRecord, recorded, start_record
from marina.k8s.rollout.transition import apply_and_wait


def rollback(
    placement: Placement,
    options: RolloutOptions,
    progress: Progress,
    record_file: Path | None,
    *,
    to: int | None = None,
) -> RolloutRecord:
    """Goes back to a kept revision, by default the one that ran before."""
    record = start_record("rollback", placement)
    with recorded(record, record_file):
        state = load_state(placement)
        revision = _chosen(placement, state, to)
        documents, _ = _permitted(placement, revision)
        check_permissions(placement.cluster, map(Ref.of, documents), placement.namespace)
        surplus = surplus_objects(placement, documents, state.good)
        dry_run_all(placement.cluster, documents, surplus, force=options.force)
        record.previous = record.running = state.current
        record.revision = revision.number
        with held(placement, state, record, progress, words=f" --to {revision.number}") as hold:
            left = placement.store.read_revision(state.current) if revision.number < state.current else None
            if state.phase == "deployed" and left and identity(left.facts) != identity(revision.facts):
                why = f"revision {left.number} was rolled back at {record.started}"
                hold.save(refused=state.refuse(left.facts, why))
            restore(placement, hold, revision, options, record, progress)
    return record


def delete(placement: Placement, progress: Progress, record_file: Path | None) -> RolloutRecord:
    """Deletes everything that this spec applied, but not its namespace, in which others may be."""
    record = start_record("delete", placement)
    with recorded(record, record_file):
        state, cluster = load_state(placement), placement.cluster
        record.previous = record.running = state.current
        objects = surplus_objects(placement, (), ())
        check_permissions(cluster, objects, placement.namespace, deleting=True)
        with held(placement, state, record, progress) as hold:
            hold.save(phase="deleting")
            record.running = 0
            record.pruned += prune_objects(cluster, objects, progress)
            rest = [cluster.get(ref) for ref in objects if str(ref) not in record.pruned]
            left = [live for live in rest if live and "deletionTimestamp" not in live["metadata"]]
            record.left = [str(Ref.of(live)) for live in left]
            placement.store.erase()
            hold.state = State()
        record.result = "deleted"
    return record


def restore(
    placement: Placement,
    hold: Hold,
    revision: Revision,
    options: RolloutOptions,
    record: RolloutRecord,
    progress: Progress,
    *,
    message: str = "",
) -> None:
    """Goes back to a revision, under a hold; the result is in the record."""
    documents, notes = _permitted(placement, revision)
    for note in notes:
        progress.say(f"note: {note}")
    record.revision, record.image = revision.number, revision.facts.get("image", "")
    state = hold.save(phase="deploying", trying=revision.number, message=message)
    if revision.request is None:
        progress.say(f"note: no sample is stored with revision {revision.number}")
    surplus = surplus_objects(placement, documents, state.good)
    apply_and_wait(placement, record, documents, revision.request, surplus, options, progress)
    if record.error:
        text = f"going back to revision {revision.number} failed: {record.error}"
        hold.save(phase="failed", message=f"{message}; {text}" if message else text, holder="")
        record.running = 0
        record.next = f"kubectl -n {placement.namespace} describe pods, or marina rollback {placement.typed} --to "
        record.next += f"{revision.number} once it is fixed"
        return
    record.pruned += mark_deployed(placement, hold, revision.number, documents, progress, message=message)
    record.result, record.running = "rolled back", revision.number


def load_state(placement: Placement) -> State:
    """The state. Raises Refused if the spec was never deployed."""
    if (state := placement.store.load()) is not None:
        return state
    raise Refused(
        f"`{placement.name}` is not deployed in namespace `{placement.namespace}` of context "
        f"`{placement.cluster.context}`",
        hint="marina deploy SPEC, or `-n NAMESPACE` or `--context C` if it is deployed elsewhere",
    )


def surplus_objects(placement: Placement, documents: Iterable[Document], kept: Iterable[int]) -> list[Ref]:
    """The objects of stored revisions that exist and are not in the documents. Never a Namespace, nor configuration of
    one of the `kept` revisions, which `kubectl rollout undo` needs."""
    stored, wanted = placement.store.revisions(), [Ref.of(document) for document in documents]
    configuration = {
        ref
        for revision in stored
        for ref in map(Ref.of, revision.documents)
        if revision.number in kept and ref.kind in ("ConfigMap", "Secret")
    }
    applied = {Ref.of(document) for revision in stored for document in revision.documents} - configuration
    gone = (ref for ref in sorted(applied) if ref.kind != "Namespace" and not any(map(ref.same_object, wanted)))
    return [ref for ref in gone if placement.cluster.get(ref) is not None]


def mark_deployed(
    placement: Placement,
    hold: Hold,
    number: int,
    documents: Sequence[Document],
    progress: Progress,
    *,
    message: str = "",
) -> tuple[str, ...]:
    """Finishes a deploy once the revision serves: deletes objects it no longer has, writes the state, and deletes old
    revisions. Returns the names of the deleted objects."""
    # Somebody else may have taken the release while this machine slept; their objects must not be deleted.
    store, good = placement.store, hold.save().kept_with(number)
    surplus = surplus_objects(placement, documents, good)
    # Autoscalers went before the revision was applied.
    pruned = prune_objects(placement.cluster, [ref for ref in surplus if ref.kind not in AUTOSCALERS], progress)
    hold.save(phase="deployed", current=number, trying=0, good=good, message=message, holder="")
    try:
        store.delete_revisions(keep=good)
    except ClusterError as err:
        progress.say(f"note: revisions that are not kept stay until the next deploy: {err.message}")
    return pruned


def _permitted(placement: Placement, revision: Revision) -> tuple[list[Document], list[str]]:
    """The documents of a revision, without monitoring that the cluster does not know any more; notes about that."""
    unknown, notes, _ = unknown_kinds(placement.cluster, list(revision.documents))
    gone = [ref for ref in unknown if ref.group in OPTIONAL]
    documents = [document for document in revision.documents if Ref.of(document) not in gone]
    return without_existing_namespace(placement.cluster, documents), notes


def _chosen(placement: Placement, state: State, to: int | None) -> Revision:
    number = state.rollback_target() if to is None else to
    revision = placement.store.read_revision(number) if number in state.good else None
    if revision is None:
        # Somebody may have deleted the revision itself.
        kept = ", ".join(f"`{other}`" for other in sorted(state.good) if other != number)
        which = "no revision before this one" if to is None else f"no revision {to}"
        hint = f"marina rollback {placement.typed} --to N" if kept else f"marina status {placement.typed}"
        raise Refused(f"there is {which} to go back to; kept: {kept or 'none'}", hint=hint)
    return revision
