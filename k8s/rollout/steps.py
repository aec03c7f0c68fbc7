"""The steps that the verbs share: each leaves the state in the cluster and the record on disk true."""

from __future__ import annotations

import getpass
import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from config.errors import MarinaError
from config.progress import Progress
from config.record import write_json
from k8s.rollout.apply import AUTOSCALERS, Change, apply, delete_ours, floor_of, ordered
from k8s.rollout.cluster import Cluster, Document, Ref
from k8s.rollout.history import HOLD_S, Revision, State, Store
from k8s.rollout.inference import Canary, Sample, infer
from k8s.rollout.record import Rollout, now
from k8s.rollout.release import How, Release, digest
from k8s.rollout.wait import wait

_CANARY_S = 60.0


class Steps:
    """One release in one cluster, with the state that was last read or written."""

    def __init__(self, cluster: Cluster, release: Release, how: How, progress: Progress, record_file: Path) -> None:
        self.cluster, self.release, self.how, self.progress = cluster, release, how, progress
        self.store = Store(cluster, release.namespace, release.name, holder=_holder())
        self.state = State()
        self._file = record_file
        self._renewed = 0.0

    def record(self, verb: str) -> Rollout:
        """An empty record of a verb."""
        release, cluster = self.release, self.cluster
        image = release.facts.get("image", "")
        return Rollout(verb, release.name, release.namespace, cluster.context, cluster.server, image=image)

    def save(self, **changes: Any) -> None:
        """Writes the state with changes."""
        self.state = self.store.save(replace(self.state, **changes))
        self._renewed = time.monotonic()

    def bring(self, record: Rollout, documents: list[Document], sample: Sample | None) -> None:
        """Applies, waits and infers; the record says how it went."""
        # Two autoscalers of one Deployment would work against each other, so the one that goes, goes first.
        self.prune(record, [ref for ref in self.surplus(documents) if ref.kind in AUTOSCALERS])
        floor = floor_of(documents)
        record.changes = []
        for document in ordered(documents):
            change = apply(self.cluster, document, force=self.how.force, floor=floor)
            record.changes.append(change)
            self._say(change)
        self.watch(record, sample)

    def watch(self, record: Rollout, sample: Sample | None) -> None:
        """Waits for the pods and asks them; the record says how it went."""
        deployment = self.release.deployment
        self.progress.say(f"waiting for {deployment}")
        record.outcome = wait(
            self.cluster, deployment, self.progress, timeout_s=self.how.timeout_s, tick=self._renew_hold
        )
        if not record.outcome.complete:
            record.result, record.error = "failed", record.outcome.why
            return
        running = [pod.name for pod in record.outcome.pods if pod.phase == "Running"]
        record.canary = self._infer(running, sample)
        if record.canary and not record.canary.ok:
            record.result = "failed"
            record.error = f"the pods are ready, but the sample was not answered as it must be: {record.canary.answer}"

    def prune(self, record: Rollout, refs: list[Ref]) -> None:
        """Deletes what is ours of some objects."""
        for ref, became in delete_ours(self.cluster, refs):
            self.progress.say(f"  {ref}: {became}")
            if became == "deleted":
                record.pruned.append(str(ref))

    def surplus(self, documents: list[Document], good: tuple[int, ...] | None = None) -> list[Ref]:
        """What was applied once and is in the documents no longer. A Namespace is never pruned, nor is configuration
        that a kept revision names: `kubectl rollout undo` must find it."""
        refs = [Ref.of(document) for document in documents]
        gone = [ref for ref in self.state.objects if not any(ref.same_object(one) for one in refs)]
        kept = self._configuration(self.state.good if good is None else good) if gone else set()
        return [ref for ref in gone if ref.kind != "Namespace" and ref not in kept]

    def inventory(self, documents: list[Document]) -> tuple[Ref, ...]:
        """All that was applied, and all that is about to be: written first, so that nothing is ever lost sight of."""
        refs = {Ref.of(document) for document in documents}
        old = {ref for ref in self.state.objects if not any(ref.same_object(one) for one in refs)}
        return tuple(sorted(old | refs))

    def arrive(self, record: Rollout, number: int, documents: list[Document], **more: Any) -> None:
        """The revision is there: the surplus goes, the state says so, old revisions are forgotten."""
        good = more.get("good", self.state.good)
        surplus = self.surplus(documents, good)
        self.prune(record, surplus)
        refs = tuple(ref for ref in self.inventory(documents) if ref not in surplus)
        kept = {"undone": tuple(one for one in self.state.undone if one in good), "message": ""} | more
        self.save(phase="deployed", current=number, trying=0, objects=refs, digest=digest(documents), holder="", **kept)
        self.store.forget(keep=good)
        record.running = number

    def restore(self, record: Rollout, revision: Revision, *, left: tuple[int, ...] = (), message: str = "") -> None:
        """Brings back a kept revision; the record says how it went."""
        documents = list(revision.documents)
        record.revision, record.image = revision.number, revision.facts.get("image", "")
        self.save(phase="deploying", trying=revision.number, objects=self.inventory(documents), message=message)
        sample = self.release.sample
        # It is the package of that revision that answers, not the one that lies here.
        theirs = replace(sample, sha256=revision.facts.get("package")) if sample else None
        self.bring(record, documents, theirs)
        if record.result == "failed":
            text = f"going back to revision {revision.number} failed: {record.error}"
            self.save(phase="failed", message=f"{message}; {text}" if message else text, holder="")
            record.next = f"kubectl -n {self.release.namespace} describe pods"
            return
        undone = tuple(sorted({*self.state.undone, *left} - {revision.number}))
        self.arrive(record, revision.number, documents, undone=undone, message=message)
        record.result = "rolled back"

    @contextmanager
    def told(self, record: Rollout) -> Iterator[None]:
        """Writes the record however it ends."""
        try:
            yield
        except MarinaError as err:
            record.result, record.error = "failed", err.message
            raise
        finally:
            record.finished = now()
            write_json(self._file, record.to_data())

    @contextmanager
    def held(self, record: Rollout) -> Iterator[None]:
        """Nobody else changes this spec meanwhile. Ctrl-C and SIGTERM leave a state that says so, and how to go on."""
        self.state = self.store.hold(self.state)
        with _sigterm_as_interrupt():
            try:
                yield
            except KeyboardInterrupt:
                record.result, record.error = "interrupted", f"interrupted at {now()}"
                on, back = f"marina {record.verb} {self.how.spec}", self.state.current
                record.next = f"{on} goes on"
                record.next += f", marina rollback {self.how.spec} goes back to revision {back}" if back else ""
                with suppress(MarinaError):
                    self.save(phase="interrupted", message=f"{record.verb} was {record.error}", holder="")
                self.progress.say(f"the cluster goes on with what was applied; {record.next}")
                raise
            except MarinaError as err:
                with suppress(MarinaError):
                    self.save(phase="failed", message=f"{record.verb} broke off: {err.message}", holder="")
                raise

    def _configuration(self, numbers: tuple[int, ...]) -> set[Ref]:
        revisions = filter(None, map(self.store.read, numbers))
        refs = (Ref.of(document) for revision in revisions for document in revision.documents)
        return {ref for ref in refs if ref.kind in ("ConfigMap", "Secret")}

    def _infer(self, pods: list[str], sample: Sample | None) -> Canary | None:
        if sample is None:
            self.progress.say("note: no package is at hand, so no inference is sent")
            return None
        release = self.release
        with self.progress.step("infer the sample"):
            found = infer(
                self.cluster, release.namespace, release.service, pods, sample, ports=release.ports,
                timeout_s=_CANARY_S,
            )  # fmt: skip
        if found.ok and not found.package:
            self.progress.say("note: no pod could be asked which package it serves; `pods/proxy` allows it")
        return found

    def _renew_hold(self) -> None:
        if self.state.holder and time.monotonic() - self._renewed > HOLD_S / 3:
            self.save()

    def _say(self, change: Change) -> None:
        words = {"create": "created", "change": "changed", "unknown": "applied"}
        if change.action in words:
            self.progress.say(f"  {change.ref}: {words[change.action]}")
        for difference in change.fields:
            self.progress.say(f"    {difference}")
        for warning in change.warnings:
            self.progress.say(f"    warning: {warning}")


def _holder() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()} ({os.getpid()}-{uuid.uuid4().hex[:6]})"


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """A CI job that is cancelled is told with SIGTERM; it ends as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
