"""Brings one release into a cluster and waits until it serves, or says why not and goes back."""

from __future__ import annotations

from dataclasses import replace

from config.errors import MarinaError, Refused
from k8s.rollout.apply import Change, Trial, apply, ordered, try_out
from k8s.rollout.cluster import Document, Ref
from k8s.rollout.history import Revision, State
from k8s.rollout.preflight import look_up_namespace, survey
from k8s.rollout.record import Rollout, now
from k8s.rollout.release import digest
from k8s.rollout.steps import Steps


def deploy(steps: Steps) -> Rollout:
    """Looks at what must be there, tries everything, then applies, waits and infers."""
    record = steps.record("deploy")
    with steps.told(record):
        documents = _surveyed(steps, record)
        with steps.progress.step("try it all on the server"):
            trial = try_out(steps.cluster, documents, force=steps.how.force)
        trial.check()
        state = steps.state
        record.previous = record.running = state.current
        record.revision, record.changes = state.last + 1, list(trial.changes)
        if steps.how.dry_run:
            record.result, record.pruned = "dry-run", list(map(str, steps.surplus(documents)))
        elif _anything_to_do(steps, trial, documents):
            _roll_out(steps, record, documents)
        else:
            record.revision = state.current
            _confirm(steps, record, documents)
    return record


def rollback(steps: Steps, to: int | None = None) -> Rollout:
    """Brings back a kept revision, by default the one that ran before."""
    record = steps.record("rollback")
    with steps.told(record):
        steps.state = load(steps)
        number = steps.state.to_go_back_to() if to is None else to
        revision = steps.store.read(number) if number in steps.state.good else None
        if revision is None:
            kept = ", ".join(f"`{one}`" for one in steps.state.good) or "none"
            which = "a revision before this one" if to is None else f"revision {to}"
            raise Refused(f"there is not {which} to go back to; kept: {kept}", hint=f"marina status {steps.how.spec}")
        trial = try_out(steps.cluster, revision.documents, force=steps.how.force)
        trial.check()
        record.previous = record.running = steps.state.current
        left = tuple(one for one in steps.state.good if revision.number < one <= steps.state.current)
        with steps.held(record):
            steps.restore(record, revision, left=left)
    return record


def load(steps: Steps) -> State:
    """The state; Refused where the spec was never deployed."""
    if (state := steps.store.load()) is not None:
        return state
    release, context = steps.release, steps.cluster.context
    raise Refused(
        f"`{release.name}` is not deployed in namespace `{release.namespace}` of context `{context}`",
        hint=f"marina deploy {steps.how.spec}, or `--context` for another cluster",
    )


def _surveyed(steps: Steps, record: Rollout) -> list[Document]:
    """The documents that this cluster takes; ClusterError with everything that lacks."""
    release, say = steps.release, steps.progress.say
    site = survey(steps.cluster, release.documents, release.namespace)
    site = replace(site, lacks=(*release.lacks, *site.lacks))
    record.site = site.to_data()
    for note in site.notes:
        say(f"note: {note}")
    site.check(steps.how.accepted)
    for lack in site.lacks:
        say(f"accepted: {lack.text}")
    steps.state = steps.store.load() or State()
    return _without_foreign_namespace(steps, [one for one in release.documents if Ref.of(one) not in site.skipped])


def _without_foreign_namespace(steps: Steps, documents: list[Document]) -> list[Document]:
    """A Namespace that is there already and not by this spec belongs to somebody else, whatever its labels."""
    kept = []
    for document in documents:
        ref = Ref.of(document)
        mine = ref in steps.state.objects
        if ref.kind == "Namespace" and not mine and look_up_namespace(steps.cluster, ref.name):
            steps.progress.say(f"note: {ref} is there already and stays as it is")
        else:
            kept.append(document)
    return kept


def _anything_to_do(steps: Steps, trial: Trial, documents: list[Document]) -> bool:
    state = steps.state
    return bool(trial.changing or steps.surplus(documents) or state.phase != "deployed" or not state.current)


def _roll_out(steps: Steps, record: Rollout, documents: list[Document]) -> None:
    for document in documents:
        if document["kind"] == "Namespace":
            # The state is kept in it, so it comes before anything else.
            apply(steps.cluster, document, force=steps.how.force)
    with steps.held(record):
        number = record.revision = steps.state.last + 1
        steps.save(phase="deploying", trying=number, last=number, objects=steps.inventory(documents), message="")
        facts = steps.release.facts | {"created": record.started, "digest": digest(documents)}
        steps.store.keep(Revision(number, tuple(documents), facts))
        try:
            steps.bring(record, documents, steps.release.sample)
        except MarinaError as err:
            record.result, record.error = "failed", err.message
        if record.result == "failed":
            _go_back(steps, record)
            return
        steps.arrive(record, number, documents, good=steps.state.keeping(number))
        record.result = "deployed"


def _go_back(steps: Steps, record: Rollout) -> None:
    """To the revision before, if there is one and the user did not say otherwise."""
    state, spec = steps.state, steps.how.spec
    text = f"revision {record.revision} failed: {record.error}"
    before = steps.store.read(state.current) if state.current and steps.how.go_back else None
    if before is None:
        steps.save(phase="failed", message=text, holder="")
        record.running = 0
        record.next = f"marina deploy {spec} once it is mended, or marina delete {spec}"
        return
    steps.progress.say(f"failed: {record.error}\ngoing back to revision {before.number}")
    record.back = back = steps.record("rollback")
    back.previous = record.revision
    try:
        steps.restore(back, before, message=text)
    except MarinaError as err:
        back.result, back.error = "failed", err.message
        steps.save(phase="failed", message=f"{text}; going back failed: {err.message}", holder="")
    back.finished = now()
    record.running = before.number if back.result == "rolled back" else 0
    record.next = f"marina status {spec}"


def _confirm(steps: Steps, record: Rollout, documents: list[Document]) -> None:
    """Nothing to change, and nothing is written; what is there must still serve."""
    record.changes = [Change(Ref.of(document), "none") for document in ordered(documents)]
    steps.watch(record, steps.release.sample)
    if record.result == "failed":
        record.next = f"kubectl -n {steps.release.namespace} describe pods, or marina rollback {steps.how.spec}"
    else:
        record.result = "unchanged"
