"""Deploys one release and waits until it serves; if it does not, says why and goes back to the revision before."""

from dataclasses import replace
from pathlib import Path

from marina.config.errors import ClusterError, MarinaError, Refused
from marina.config.progress import Progress
from marina.k8s.cluster import Document, Ref
from marina.k8s.rollout.apply import apply, dry_run_all, manages
from marina.k8s.rollout.gate import Gate, needs_gate, stand_gate
from marina.k8s.rollout.history import Placement, Revision, State, identity
from marina.k8s.rollout.hold import Hold, held
from marina.k8s.rollout.inference import OTHER_ANSWER
from marina.k8s.rollout.preflight import Preflight, run_preflight, without_existing_namespace
from marina.k8s.rollout.record import RolloutOptions, RolloutRecord, now, recorded, start_record
from marina.k8s.rollout.release import Release
from marina.k8s.rollout.rollback import mark_deployed, restore, surplus_objects
from marina.k8s.rollout.transition import apply_and_wait, wait_and_infer


def deploy(
    placement: Placement,
    release: Release,
    options: RolloutOptions,
    progress: Progress,
    record_file: Path,
    gate: Gate | None = None,
) -> RolloutRecord:
    """Checks the cluster, does a dry run, then applies, waits and sends the sample. With a `gate`, a revision that
    replaces another must pass it first."""
    record = start_record("deploy", placement, image=release.facts.get("image", ""))
    if release.request and OTHER_ANSWER in options.accepted:
        release = replace(release, request=replace(release.request, answer=None))
    with recorded(record, record_file):
        checked = _check_cluster(placement, release, options, record, progress)
        store, cluster = placement.store, placement.cluster
        state = store.load() or State(last=max((revision.number for revision in store.revisions()), default=0))
        documents = without_existing_namespace(cluster, checked)
        surplus = [ref for ref in surplus_objects(placement, documents, state.good) if manages(cluster, ref)]
        with progress.step("dry run on the server"):
            changes = dry_run_all(cluster, documents, surplus, force=options.force)
        serves = state.phase == "deployed" and state.current and not state.holder
        idle = serves and not surplus and all(change.action == "none" for change in changes)
        record.previous = record.running = state.current
        record.revision, record.changes = state.current if idle else state.last + 1, changes
        if options.dry_run:
            record.result, record.pruned = "dry-run", list(map(str, surplus))
        elif idle:
            _confirm(placement, release, documents, options, record, progress)
        else:
            _check_refused(placement, release, state, options)
            _roll_out(placement, release, documents, state, options, record, progress, gate)
    return record


def _check_refused(placement: Placement, release: Release, state: State, options: RolloutOptions) -> None:
    """Raises Refused for a package that a gate refused, or that was rolled back."""
    why = state.refused.get(identity(release.facts))
    if why and not options.again:
        hint = f"marina deploy {placement.typed} --again deploys it all the same"
        raise Refused(f"this package was refused or rolled back: {why}", hint=hint)


def _check_cluster(
    placement: Placement, release: Release, options: RolloutOptions, record: RolloutRecord, progress: Progress
) -> list[Document]:
    """The documents as this cluster can accept them. Raises ClusterError with everything that is missing."""
    # The checks of the cluster rely on the documents, in which a patch may have given a field another type.
    Preflight(blockers=release.blockers).check(options.accepted)
    site = run_preflight(placement.cluster, release.documents, placement.namespace)
    site = replace(site, blockers=(*release.blockers, *site.blockers), notes=(*release.notes, *site.notes))
    record.site = site.to_data()
    for note in site.notes:
        progress.say(f"note: {note}")
    site.check(options.accepted)
    for blocker in site.blockers:
        progress.say(f"accepted: {blocker.text}")
    return [document for document in release.documents if Ref.of(document) not in site.skipped]


def _roll_out(
    placement: Placement,
    release: Release,
    documents: list[Document],
    state: State,
    options: RolloutOptions,
    record: RolloutRecord,
    progress: Progress,
    gate: Gate | None,
) -> None:
    # The state is stored in it, so it comes first.
    for document in (each for each in documents if each["kind"] == "Namespace"):
        if apply(placement.cluster, document, force=options.force).action == "create":
            progress.say(f"created {Ref.of(document)}")
    with held(placement, state, record, progress) as hold:
        number, facts = record.revision, release.facts | {"created": record.started}
        # It comes first: a quota or a policy may refuse it, and then nothing was changed.
        if not placement.store.save_revision(Revision(number, tuple(documents), facts, release.request)):
            progress.say("note: the sample is too large to store, so a rollback to this revision sends no inference")
        again = {package: why for package, why in state.refused.items() if package != identity(facts)}
        hold.save(phase="deploying", trying=number, last=number, message="", refused=again)
        surplus = surplus_objects(placement, documents, state.good)

        def pass_gate(document: Document) -> None:
            if not gate or not state.current or not needs_gate(placement.cluster, document):
                return
            served = placement.store.read_revision(state.current)
            deployments = (each for each in (served.documents if served else ()) if each["kind"] == "Deployment")
            before = next(deployments, None)
            record.gate = stand_gate(placement, document, release.request, gate, before, options, progress)
            facts["gate"] = record.gate.text
            placement.store.save_revision(Revision(number, tuple(documents), facts, release.request))
            if record.gate.status != "PASS":
                raise ClusterError(f"the gate says {record.gate}")
            progress.say(f"the gate says {record.gate}")

        apply_and_wait(placement, record, documents, release.request, surplus, options, progress, gate=pass_gate)
        if record.gate and record.gate.status == "FAIL":
            why = f"revision {number} at {record.started}: {record.gate}"
            hold.save(refused=hold.state.refuse(facts, why))
        if record.error:
            _go_back(placement, hold, options, record, progress)
            return
        record.pruned += mark_deployed(placement, hold, number, documents, progress)
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
    wait_and_infer(placement, record, documents, release.request, options, progress)
    if record.error:
        describe = f"kubectl -n {placement.namespace} describe pods"
        record.next = f"{describe}, or marina rollback {placement.typed}"
    else:
        record.result = "unchanged"
