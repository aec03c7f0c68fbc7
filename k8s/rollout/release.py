"""What is deployed: the documents of one spec, the facts that a cluster keeps of them, and what the pods are asked."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from config.spec import Spec
from k8s.cluster import Document
from k8s.extending import summarise_patches
from k8s.manifests import Files, Plan, check_machine, make_plan, patch_notes, render
from k8s.rollout.inference import CanaryRequest, packaged_sample
from k8s.rollout.preflight import Blocker
from k8s.verify import Scope, locate_rendered, verify


@dataclass(frozen=True)
class Release:
    """One spec's documents, and how to ask what they make whether it works."""

    documents: tuple[Document, ...]
    request: CanaryRequest | None
    """None where no package is at hand; then no inference is sent, and a note says so."""
    facts: dict[str, str] = field(default_factory=dict)
    """Version, image, package, evidence and patches: what `status` shows of a revision."""
    blockers: tuple[Blocker, ...] = ()
    """What is wrong with the documents themselves, wherever they are applied."""
    notes: tuple[str, ...] = ()
    """What to know of them before they are applied."""


def make_release(spec: Spec, folder: Path, accepted: Collection[str] = ()) -> Release:
    """The release of a spec and its build folder, rendered now, so that it cannot be older than the spec."""
    plan = make_plan(spec, folder)
    check_machine(spec, plan.evidence, accepted)
    files = render(plan)
    documents = tuple(document for documents in files.values() for document in documents)
    facts = {"version": spec.version, "image": plan.image}
    facts |= {"package": plan.package.sha256} if plan.package else {}
    facts |= {"evidence": plan.evidence.sha256} if plan.evidence else {}
    patches = summarise_patches(spec)
    facts |= {"patched": patches} if patches else {}
    mar = folder / "model.mar"
    request = packaged_sample(mar, plan.package) if plan.package and mar.exists() else None
    notes = tuple(note.text for note in patch_notes(plan))
    return Release(documents, request, facts, errors_of(files, plan), notes)


def errors_of(files: Files, plan: Plan) -> tuple[Blocker, ...]:
    """What `marina verify` calls an error, for one version: the server's own trial compares with its schemas."""
    findings = verify(locate_rendered(files), Scope((plan.oldest_kubernetes,), plan))
    errors = (finding for finding in findings if finding.level == "error")
    return tuple(Blocker("verify", f"{error} ({error.rule})", error.hint, acceptable=True) for error in errors)
