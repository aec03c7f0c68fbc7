"""Deploys one release and waits until it serves; if it does not, says why and goes back to the revision before."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from marina.config.errors import MarinaError
from marina.config.progress import Progress
from marina.k8s.cluster import Document, Ref
from marina.k8s.rollout.apply import ObjectChange, apply, dry_run_all, in_apply_order
from marina.k8s.rollout.history import Revision, State
from marina.k8s.rollout.hold import Hold, held
from marina.k8s.rollout.inventory import all_objects, mark_deployed, objects_to_prune
from marina.k8s.rollout.placement import Placement, RolloutOptions
from marina.k8s.rollout.preflight import (
    DROPPABLE_METRICS,
    Preflight,
    look_up_namespace,
    namespace_is_fixed,
    run_preflight,
    without_metrics,
)
from marina.k8s.rollout.record import RolloutRecord, now, recorded, start_record
from marina.k8s.rollout.release import Release
from marina.k8s.rollout.rollback import restore
from marina.k8s.rollout.transition import apply_and_wait, wait_and_infer


def deploy(
    placement: Placement, release: Release, options: RolloutOptions, progress: Progress, record_file: Path
) -> RolloutRecord:
    """Checks the cluster, does a dry run, then applies, waits and sends the sample."""
    record = start_record("deploy", placement, image=release.facts.get("image", ""))
    with recorded(record, record_file):
        accepted = _check_cluster(placement, release, options, record, progress)
        state = placement.store.load() or State()
        documents = _without_foreign_namespace(placement, state, accepted, progress)
        surplus = objects_to_prune(placement.store, state, documents, state.good)
        with progress.step("dry run on the server"):
            dry_run = dry_run_all(placement.cluster, documents, surplus, force=options.force)
        dry_run.check()
        serves = state.phase == "deployed" and state.current and not state.holder
        idle = serves and not dry_run.changing and not surplus
        record.previous = record.running = state.current
        record.revision, record.changes = state.current if idle else state.last + 1, list(dry_run.changes)
        if options.dry_run:
            record.result, record.pruned = "dry-run", list(map(str, surplus))
        elif idle:
            _confirm(placement, release, documents, options, record, progress)
        else:
            _roll_out(placement, release, documents, state, options, record, progress)
    return record


def _check_cluster(
    placement: Placement, release: Release, options: RolloutOptions, record: RolloutRecord, progress: Progress
) -> list[Document]:
    """The documents as this cluster can accept them. Raises ClusterError with everything that is missing."""
    # The checks of the cluster rely on the documents, in which a patch may have given a field another type.
    Preflight("", "", blockers=release.blockers).check(options.accepted)
    site = run_preflight(placement.cluster, release.documents, placement.namespace)
    site = replace(site, blockers=(*release.blockers, *site.blockers), notes=(*release.notes, *site.notes))
    record.site = site.to_data()
    for note in site.notes:
        progress.say(f"note: {note}")
    site.check(options.accepted)
    for blocker in site.blockers:
        progress.say(f"accepted: {blocker.text}")
    documents = [document for document in release.documents if Ref.of(document) not in site.skipped]
    for types, name in (DROPPABLE_METRICS[blocker.id] for blocker in site.blockers if blocker.id in DROPPABLE_METRICS):
        progress.say(f"note: the autoscaler gets no {name} metric, because it removes no pod while one is unknown")
        documents = [without_metrics(document, types) for document in documents]
    return documents


def _without_foreign_namespace(
    placement: Placement, state: State, documents: Iterable[Document], progress: Progress
) -> list[Document]:
    """Leaves out a Namespace that exists but is not this spec's, because it belongs to somebody else, whatever its
    labels; also one that we may not apply."""
    kept = []
    for document in documents:
        ref = Ref.of(document)
        stays = namespace_is_fixed if ref in state.objects else look_up_namespace
        if ref.kind == "Namespace" and stays(placement.cluster, ref.name):
            progress.say(f"note: {ref} already exists and stays as it is")
        else:
            kept.append(document)
    return kept


def _roll_out(
    placement: Placement,
    release: Release,
    documents: list[Document],
    state: State,
    options: RolloutOptions,
    record: RolloutRecord,
    progress: Progress,
) -> None:
    for document in documents:
        if document["kind"] == "Namespace":
            # The state is stored in it, so it comes first.
            apply(placement.cluster, document, force=options.force)
    with held(placement, state, record, progress) as hold:
        number = record.revision
        objects = all_objects(state, documents)
        facts = release.facts | {"created": record.started}
        # It comes first: a quota or a policy may refuse it, and then nothing was changed.
        if not placement.store.save_revision(Revision(number, tuple(documents), facts, release.request)):
            progress.say("note: the sample is too large to store, so a rollback to this revision sends no inference")
        state = hold.save(phase="deploying", trying=number, last=number, objects=objects, message="")
        surplus = objects_to_prune(placement.store, state, documents, state.good)
        record.add_transition(apply_and_wait(placement, documents, release.request, surplus, options, progress))
        if record.error:
            _go_back(placement, hold, options, record, progress)
            return
        good = state.kept_with(number)
        record.pruned += mark_deployed(placement, hold, number, documents, progress, good=good, undone=state.undone)
        record.result, record.running = "deployed", number


def _go_back(
    placement: Placement, hold: Hold, options: RolloutOptions, record: RolloutRecord, progress: Progress
) -> None:
    """Goes back to the revision before, if there is one and the user did not forbid it."""
    state = hold.state
    causes = record.waited.causes if record.waited else ()
    text = f"revision {record.revision} failed: {record.error}" + "".join(f"; {cause.text}" for cause in causes[:1])
    try:
        before = placement.store.read_revision(state.current) if state.current else None
    except MarinaError as err:
        err.message = f"{text}; going back failed: {err.message}"
        raise
    if before is None or not options.go_back:
        hold.save(phase="failed", message=text, holder="")
        record.running = 0
        if state.current and not before:
            progress.say(f"note: revision {state.current} is not stored any more, so nothing goes back to it")
        undo = "rollback" if state.good else "delete"
        record.next = f"marina deploy {placement.typed} once it is fixed, or marina {undo} {placement.typed}"
        return
    progress.say(f"failed: {record.error}\ngoing back to revision {before.number}")
    record.back = back = start_record("rollback", placement)
    back.previous = record.revision
    try:
        restore(placement, hold, before, options, back, progress, message=text)
    except MarinaError as err:
        back.result, back.error = "failed", err.message
        hold.save(phase="failed", message=f"{text}; going back failed: {err.message}", holder="")
    back.finished = now()
    record.running = before.number if back.result == "rolled back" else 0
    record.next = back.next or f"marina status {placement.typed}"


def _confirm(
    placement: Placement,
    release: Release,
    documents: list[Document],
    options: RolloutOptions,
    record: RolloutRecord,
    progress: Progress,
) -> None:
    """There is nothing to change and nothing is written, but the running revision must serve."""
    record.add_transition(wait_and_infer(placement, documents, release.request, options, progress))
    record.changes = [ObjectChange(Ref.of(document), "none") for document in in_apply_order(documents)]
    if record.error:
        describe = f"kubectl -n {placement.namespace} describe pods"
        record.next = f"{describe}, or marina rollback {placement.typed}"
    else:
        record.result = "unchanged"
