"""Goes back to a revision that is stored in the cluster. Neither the spec nor the package is needed."""

from pathlib import Path

from marina.config.errors import Refused
from marina.config.progress import Progress
from marina.k8s.cluster import Document, Ref
from marina.k8s.rollout.apply import dry_run_all
from marina.k8s.rollout.history import Revision, State
from marina.k8s.rollout.hold import Hold, held
from marina.k8s.rollout.inventory import all_objects, mark_deployed, objects_to_prune
from marina.k8s.rollout.placement import Placement, RolloutOptions
from marina.k8s.rollout.preflight import OPTIONAL, check_permissions, namespace_is_fixed, unknown_kinds
from marina.k8s.rollout.record import RolloutRecord, recorded, start_record
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
        surplus = objects_to_prune(placement.store, state, documents, state.good)
        dry_run_all(placement.cluster, documents, surplus, force=options.force).check()
        record.previous = record.running = state.current
        record.revision = revision.number
        left = tuple(number for number in state.good if revision.number < number <= state.current)
        with held(placement, state, record, progress, words=f" --to {revision.number}") as hold:
            restore(placement, hold, revision, options, record, progress, left=left)
    return record


def restore(
    placement: Placement,
    hold: Hold,
    revision: Revision,
    options: RolloutOptions,
    record: RolloutRecord,
    progress: Progress,
    *,
    left: tuple[int, ...] = (),
    message: str = "",
) -> None:
    """Goes back to a revision, under a hold; the result is in the record. `left` are the revisions that it skips."""
    documents, notes = _permitted(placement, revision)
    for note in notes:
        progress.say(f"note: {note}")
    record.revision, record.image = revision.number, revision.facts.get("image", "")
    objects = all_objects(hold.state, documents)
    state = hold.save(phase="deploying", trying=revision.number, objects=objects, message=message)
    if revision.request is None:
        progress.say(f"note: no sample is stored with revision {revision.number}")
    surplus = objects_to_prune(placement.store, state, documents, state.good)
    record.add_transition(apply_and_wait(placement, documents, revision.request, surplus, options, progress))
    if record.error:
        text = f"going back to revision {revision.number} failed: {record.error}"
        hold.save(phase="failed", message=f"{message}; {text}" if message else text, holder="")
        record.running = 0
        record.next = f"kubectl -n {placement.namespace} describe pods, or marina rollback {placement.typed} --to "
        record.next += f"{revision.number} once it is fixed"
        return
    undone = tuple(sorted({*state.undone, *left} - {revision.number}))
    record.pruned += mark_deployed(
        placement, hold, revision.number, documents, progress, good=state.good, undone=undone, message=message
    )
    record.result, record.running = "rolled back", revision.number


def _permitted(placement: Placement, revision: Revision) -> tuple[list[Document], list[str]]:
    """The documents of a revision, without a Namespace that we may not apply, and without monitoring that the cluster
    does not know any more; notes about the latter."""
    unknown, notes, _ = unknown_kinds(placement.cluster, list(revision.documents))
    documents = [
        document
        for document in revision.documents
        if not ((ref := Ref.of(document)) in unknown and ref.group in OPTIONAL)
        and (ref.kind != "Namespace" or not namespace_is_fixed(placement.cluster, ref.name))
    ]
    return documents, notes


def load_state(placement: Placement) -> State:
    """The state. Raises Refused if the spec was never deployed."""
    if (state := placement.store.load()) is not None:
        return state
    raise Refused(
        f"`{placement.name}` is not deployed in namespace `{placement.namespace}` of context "
        f"`{placement.cluster.context}`",
        hint="marina deploy SPEC, or `-n NAMESPACE` or `--context C` if it is deployed elsewhere",
    )


def _chosen(placement: Placement, state: State, to: int | None) -> Revision:
    number = state.rollback_target() if to is None else to
    revision = placement.store.read_revision(number) if number in state.good else None
    if revision is None:
        # Somebody may have deleted the revision itself.
        kept = ", ".join(f"`{other}`" for other in state.good if other != number)
        which = "no revision before this one" if to is None else f"no revision {to}"
        hint = f"marina rollback {placement.typed} --to N" if kept else f"marina status {placement.typed}"
        raise Refused(f"there is {which} to go back to; kept: {kept or 'none'}", hint=hint)
    return revision
