"""What is deployed: the documents of one spec, the facts about them, and the request that their pods must answer."""

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from marina.config.spec import Spec
from marina.k8s.cluster import Document
from marina.k8s.extending import summarise_patches
from marina.k8s.manifests import SUPPORTED_VERSIONS, Files, Plan, check_evidence, make_plan, patch_notes, render_objects
from marina.k8s.rollout.inference import CanaryRequest, packaged_sample
from marina.k8s.rollout.preflight import Blocker
from marina.k8s.verify import verify


@dataclass(frozen=True)
class Release:
    """One spec's documents, and the request that proves that they serve."""

    documents: tuple[Document, ...]
    request: CanaryRequest | None
    """None if there is no package; then no inference is sent, and a note says so."""
    facts: dict[str, str] = field(default_factory=dict)
    """Version, image, package, evidence and patches, which `status` shows."""
    blockers: tuple[Blocker, ...] = ()
    """Errors in the documents themselves, whatever the cluster."""
    notes: tuple[str, ...] = ()
    """Remarks about the documents, shown before they are applied."""


def make_release(spec: Spec, folder: Path, accepted: Collection[str] = ()) -> Release:
    """Makes the release of a spec. It is rendered now, so it cannot be older than the spec."""
    plan = make_plan(spec, folder)
    check_evidence(spec, plan.evidence, accepted)
    files = render_objects(plan)
    documents = tuple(document for documents in files.values() for document in documents)
    facts = {"version": spec.version, "image": plan.image}
    facts |= {"package": plan.package.sha256} if plan.package else {}
    facts |= {"evidence": plan.evidence.sha256} if plan.evidence else {}
    patches = summarise_patches(spec)
    facts |= {"patched": patches} if patches else {}
    mar = folder / "model.mar"
    request = packaged_sample(mar, plan.package) if plan.package and mar.exists() else None
    notes = tuple(note.text for note in patch_notes(plan))
    return Release(documents, request, facts, verify_blockers(files, plan), notes)


def verify_blockers(files: Files, plan: Plan) -> tuple[Blocker, ...]:
    """The errors of `marina verify`, as blockers. One version suffices, because the server's dry run checks its own."""
    findings = verify(files, plan, (plan.oldest_kubernetes,))
    errors = [finding for finding in findings if finding.level == "error"]
    # A value of a type that no version takes: no cluster accepts it, and the checks that follow could not read it.
    newest = verify(files, plan, SUPPORTED_VERSIONS[-1:]) if errors else []
    wrong = {finding for finding in newest if finding.rule == "schema" and not finding.text.startswith("unknown field")}
    return tuple(
        Blocker("verify", f"{error} ({error.rule})", error.hint, acceptable=error not in wrong) for error in errors
    )
