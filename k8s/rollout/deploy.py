"""Puts one release into a cluster and waits until it serves, or says why not and goes back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from config.errors import MarinaError
from config.progress import Progress
from k8s.cluster import Document, Ref
from k8s.rollout.apply import Change, apply, ordered, try_out
from k8s.rollout.history import Revision, State
from k8s.rollout.hold import Hold, held
from k8s.rollout.inventory import all_objects, mark_deployed, outgoing
from k8s.rollout.placement import Placement, RolloutOptions
from k8s.rollout.preflight import SPARED, look_up_namespace, namespace_is_fixed, survey, without_metrics
from k8s.rollout.record import Rollout, now, recorded, start_record
from k8s.rollout.release import Release
from k8s.rollout.rollback import restore
from k8s.rollout.transition import apply_and_wait, wait_and_infer


def deploy(
    placement: Placement, release: Release, options: RolloutOptions, progress: Progress, record_file: Path
) -> Rollout:
    """Looks at what must be there, tries everything, then applies, waits and infers."""
    record = start_record("deploy", placement, image=release.facts.get("image", ""))
    with recorded(record, record_file):
        known = _surveyed(placement, release, options, record, progress)
        state = placement.store.load() or State()
        documents = _without_foreign_namespace(placement, state, known, progress)
        with progress.step("try it all on the server"):
            trial = try_out(placement.cluster, documents, force=options.force)
        trial.check()
        record.previous = record.running = state.current
        record.revision, record.changes = state.last + 1, list(trial.changes)
        surplus = outgoing(placement.store, state, documents, state.good)
        if options.dry_run:
            record.result, record.pruned = "dry-run", list(map(str, surplus))
        elif trial.changing or surplus or state.phase != "deployed" or not state.current:
            _roll_out(placement, release, documents, state, options, record, progress)
        else:
            record.revision = state.current
            _confirm(placement, release, documents, options, record, progress)
    return record


def _surveyed(
    placement: Placement, release: Release, options: RolloutOptions, record: Rollout, progress: Progress
) -> list[Document]:
    """The documents as this cluster can take them; ClusterError with everything that is missing."""
    site = survey(placement.cluster, release.documents, placement.namespace)
    site = replace(site, blockers=(*release.blockers, *site.blockers), notes=(*release.notes, *site.notes))
    record.site = site.to_data()
    for note in site.notes:
        progress.say(f"note: {note}")
    site.check(options.accepted)
    for blocker in site.blockers:
        progress.say(f"accepted: {blocker.text}")
    documents = [document for document in release.documents if Ref.of(document) not in site.skipped]
    for types, name in (SPARED[blocker.id] for blocker in site.blockers if blocker.id in SPARED):
        progress.say(f"note: the autoscaler goes without its {name} metric: with one that is unknown it removes no pod")
        documents = [without_metrics(document, types) for document in documents]
    return documents


def _without_foreign_namespace(
    placement: Placement, state: State, documents: Iterable[Document], progress: Progress
) -> list[Document]:
    """A Namespace that is there already and not by this spec belongs to somebody else, whatever its labels; one that we
    may not apply does too."""
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
    record: Rollout,
    progress: Progress,
) -> None:
    for document in documents:
        if document["kind"] == "Namespace":
            # The state is kept in it, so it comes before anything else.
            apply(placement.cluster, document, force=options.force)
    with held(placement, state, record, progress) as hold:
        number = record.revision
        objects = all_objects(state, documents)
        state = hold.save(phase="deploying", trying=number, last=number, objects=objects, message="")
        facts = release.facts | {"created": record.started}
        if not placement.store.keep(Revision(number, tuple(documents), facts, release.request)):
            progress.say("note: the sample is too large to be kept: a rollback to this revision sends no inference")
        surplus = outgoing(placement.store, state, documents, state.good)
        record.take(apply_and_wait(placement, documents, release.request, surplus, options, progress))
        if record.error:
            _go_back(placement, hold, options, record, progress)
            return
        good = state.keeping(number)
        record.pruned += mark_deployed(placement, hold, number, documents, progress, good=good, undone=state.undone)
        record.result, record.running = "deployed", number


def _go_back(placement: Placement, hold: Hold, options: RolloutOptions, record: Rollout, progress: Progress) -> None:
    """To the revision before, if there is one and the user did not say otherwise."""
    state = hold.state
    text = f"revision {record.revision} failed: {record.error}"
    before = placement.store.read(state.current) if state.current and options.go_back else None
    if before is None:
        hold.save(phase="failed", message=text, holder="")
        record.running = 0
        record.next = f"marina deploy {placement.typed} once it is fixed, or marina delete {placement.typed}"
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
    record.next = f"marina status {placement.typed}"


def _confirm(
    placement: Placement,
    release: Release,
    documents: list[Document],
    options: RolloutOptions,
    record: Rollout,
    progress: Progress,
) -> None:
    """Nothing to change, and nothing is written; what runs must still serve."""
    record.take(wait_and_infer(placement, documents, release.request, options, progress))
    record.changes = [Change(Ref.of(document), "none") for document in ordered(documents)]
    if record.error:
        describe = f"kubectl -n {placement.namespace} describe pods"
        record.next = f"{describe}, or marina rollback {placement.typed}"
    else:
        record.result = "unchanged"
