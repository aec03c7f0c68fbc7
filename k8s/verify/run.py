"""What is verified and how it is told: a spec's manifests, or a folder of anybody's."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from config.errors import InputError, listed, nearest
from config.spec import Spec
from k8s.manifests import MANIFESTS_FOLDER, SUPPORTED_VERSIONS, check_evidence, make_plan, render_objects
from k8s.verify.check import StepReporter, all_rules, verify
from k8s.verify.live import check_live
from k8s.verify.located import LocatedDocument, read_folder, rendered
from k8s.verify.rule import Rule, Scope, Violation


@dataclass(frozen=True)
class Verified:
    """The answer: every finding, and what was looked at."""

    origin: str
    """Where the objects came from."""
    objects: int
    versions: tuple[str, ...]
    findings: list[Violation]
    notes: list[str]
    """What to know, and no finding."""

    @property
    def errors(self) -> int:
        return sum(finding.level == "error" for finding in self.findings)

    @property
    def warnings(self) -> int:
        return len(self.findings) - self.errors

    def to_data(self) -> dict[str, Any]:
        """As JSON."""
        counts = {"objects": self.objects, "rules": len(all_rules()), "errors": self.errors, "warnings": self.warnings}
        findings = [asdict(finding) | {"line": finding.line or None} for finding in self.findings]
        known = {"origin": self.origin, "versions": list(self.versions), "notes": self.notes}
        return {"schema": "marina.verify/1", **known, **counts, "findings": findings}

    def to_text(self) -> str:
        """A paragraph a finding, and a last line of counts."""
        lines = [f"{finding.level}: {finding} ({finding.rule})\n  hint: {finding.hint}" for finding in self.findings]
        looked = f"{self.objects} objects of {self.origin}, Kubernetes {self.versions[0]}"
        looked += f"–{self.versions[-1]}" if len(self.versions) > 1 else ""
        counts = f"{_counted(self.errors, 'error')}, {_counted(self.warnings, 'warning')}"
        return "\n".join([*lines, f"{looked}, {len(all_rules())} rules: {counts}"])


def verify_spec(
    spec: Spec,
    build: Path,
    versions: Sequence[str] = (),
    steps: StepReporter | None = None,
    *,
    live: str | None = None,
    accepted: Collection[str] = (),
) -> Verified:
    """The manifests in a build folder, or, before there are any, those that the spec renders; and the page of a running
    server, if its address is given."""
    plan = make_plan(spec, build)
    check_evidence(spec, plan.evidence, accepted)
    fresh, folder, notes = rendered(render_objects(plan)), build / MANIFESTS_FOLDER, []
    documents = fresh
    if folder.is_dir():
        documents = read_folder(folder)
        if sorted(map(_key, documents)) != sorted(map(_key, fresh)):
            notes.append(f"{folder}: the spec renders something else by now: marina manifests {spec.file}")
    known = [
        version
        for version in _ordered(versions) or SUPPORTED_VERSIONS
        if _minor(version) >= _minor(plan.oldest_kubernetes)
    ]
    if not known:
        raise InputError(f"`--kubernetes`: the spec needs {plan.oldest_kubernetes} or later")
    if len(known) < len(versions or SUPPORTED_VERSIONS):
        notes.append(f"the spec needs Kubernetes {plan.oldest_kubernetes} or later")
    origin = str(folder) if documents is not fresh else f"{spec.file}, as rendered"
    verified = _verified(origin, documents, Scope(tuple(known), plan), notes, steps)
    return replace(verified, findings=verified.findings + check_live(spec, live)) if live else verified


def verify_folder(folder: Path, versions: Sequence[str] = (), steps: StepReporter | None = None) -> Verified:
    """The objects in a folder, whoever wrote them."""
    scope = Scope(tuple(_ordered(versions)) or SUPPORTED_VERSIONS)
    return _verified(str(folder), read_folder(folder), scope, [], steps)


def explain_rule(name: str) -> Rule:
    """A rule by its id; InputError with the nearest one."""
    known = {rule.id: rule for rule in all_rules()}
    if name not in known:
        near = nearest(name, known)
        text = f"did you mean `{near}`?" if near else f"allowed: {listed(known)}"
        raise InputError(f"`--explain`: got `{name}`, {text}", hint=near and f"marina verify --explain {near}")
    return known[name]


def _verified(
    origin: str, documents: list[LocatedDocument], scope: Scope, notes: list[str], steps: StepReporter | None
) -> Verified:
    findings = verify(documents, scope, steps)
    return Verified(origin, len(documents), scope.versions, findings, notes)


def _key(document: LocatedDocument) -> str:
    return repr(document.data)


def _ordered(versions: Sequence[str]) -> list[str]:
    for version in versions:
        if not version.removeprefix("1.").isdigit():
            raise InputError(
                f"`--kubernetes`: got `{version}`, allowed: {listed(SUPPORTED_VERSIONS)}", hint="--kubernetes 1.34"
            )
    return sorted(set(versions), key=_minor)


def _minor(version: str) -> int:
    return int(version.partition(".")[2])


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
