"""What is deployed: the documents of one spec, the facts that a cluster keeps of them, and what the pods are asked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from config.errors import InputError
from config.render import Ports
from config.spec import Spec
from k8s.manifests import Files, Plan, make_plan, render
from k8s.rollout.cluster import Document, Ref
from k8s.rollout.inference import Sample, sample_of
from k8s.rollout.preflight import Lack
from k8s.verify import Scope, rendered, verify


@dataclass(frozen=True)
class Release:
    """One spec's documents, and how to ask what they make whether it works."""

    name: str
    namespace: str
    documents: tuple[Document, ...]
    sample: Sample | None
    """None where no package is at hand; then no inference is sent, which is said."""
    facts: dict[str, str] = field(default_factory=dict)
    """Version, image, package and evidence: what `status` shows of a revision."""
    ports: Ports = field(default_factory=Ports)
    lacks: tuple[Lack, ...] = ()
    """What is wrong with the documents themselves, wherever they are applied."""

    @property
    def deployment(self) -> Ref:
        """The Deployment whose pods serve."""
        found = [Ref.of(document) for document in self.documents if document["kind"] == "Deployment"]
        if len(found) != 1:
            raise InputError(f"the manifests hold {len(found)} Deployments, allowed: 1")
        return found[0]

    @property
    def service(self) -> str:
        """The Service through which clients come."""
        for document in self.documents:
            ports = document["spec"].get("ports", []) if document["kind"] == "Service" else []
            if any(port["port"] == self.ports.inference for port in ports):
                return str(document["metadata"]["name"])
        raise InputError(f"the manifests hold no Service with port {self.ports.inference}")


@dataclass(frozen=True)
class How:
    """The options of the verbs that change a cluster."""

    spec: str = "SPEC"
    """The spec as it was typed, for what to type next."""
    timeout_s: float | None = None
    """How long a rollout may take; default: as long as it makes progress."""
    force: bool = False
    go_back: bool = True
    dry_run: bool = False
    accepted: Collection[str] = ()


def make_release(spec: Spec, folder: Path) -> Release:
    """The release of a spec and its build folder, rendered now, so that it cannot be older than the spec."""
    plan = make_plan(spec, folder)
    files = render(plan)
    documents = tuple(document for documents in files.values() for document in documents)
    facts = {"version": spec.version, "image": plan.image}
    facts |= {"package": plan.package.sha256} if plan.package else {}
    facts |= {"evidence": plan.evidence.sha256} if plan.evidence else {}
    mar = folder / "model.mar"
    sample = sample_of(mar, plan.package) if plan.package and mar.exists() else None
    return Release(plan.name, plan.namespace, documents, sample, facts, plan.ports, errors_of(files, plan))


def errors_of(files: Files, plan: Plan) -> tuple[Lack, ...]:
    """What `marina verify` calls an error, for one version: the server's own trial compares with its schemas."""
    findings = verify(rendered(files), Scope((plan.oldest_kubernetes,), plan))
    errors = (finding for finding in findings if finding.level == "error")
    return tuple(Lack("verify", f"{one} ({one.rule})", one.hint, acceptable=True) for one in errors)


def digest(documents: Iterable[Document]) -> str:
    """One hash of all documents."""
    return hashlib.sha256(json.dumps(list(documents), sort_keys=True).encode()).hexdigest()
