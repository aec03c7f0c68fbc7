"""`marina verify`: checks a spec's manifests or any folder of objects, and presents the findings."""

import re
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from marina.config.errors import InputError, listed, nearest, printable
from marina.config.progress import Progress
from marina.config.spec import Spec
from marina.k8s.manifests import MANIFESTS_FOLDER, SUPPORTED_VERSIONS, check_evidence, make_plan, render_objects
from marina.k8s.verify.application import Application
from marina.k8s.verify.check import all_rules, verify
from marina.k8s.verify.kustomize import describe_unapplied
from marina.k8s.verify.live import check_live
from marina.k8s.verify.located import LocatedDocument, locate_rendered, read_objects
from marina.k8s.verify.rule import Rule, Scope, Violation

_SHOWN = 5


@dataclass(frozen=True)
class Verification:
    """Every finding, and what was checked."""

    origin: str
    """Where the objects come from."""
    objects: int
    """How many were checked."""
    versions: tuple[str, ...]
    findings: list[Violation]
    notes: list[str]
    """Remarks about the check itself."""

    @property
    def errors(self) -> int:
        return sum(finding.level == "error" for finding in self.findings)

    @property
    def warnings(self) -> int:
        return len(self.findings) - self.errors

    def to_data(self) -> dict[str, Any]:
        """The record that `--json` prints."""
        counts = {"objects": self.objects, "rules": len(all_rules()), "errors": self.errors, "warnings": self.warnings}
        findings = [asdict(finding) | {"line": finding.line or None} for finding in self.findings]
        checked = {"origin": self.origin, "versions": list(self.versions), "notes": self.notes}
        return {"schema": "marina.verify/1", **checked, **counts, "findings": findings}

    def to_text(self) -> str:
        """A paragraph per finding, and a last line with the counts."""
        lines = [f"{finding.level}: {finding} ({finding.rule})\n  hint: {finding.hint}" for finding in self.findings]
        checked = f"{_counted(self.objects, 'object')} of {self.origin}, Kubernetes {self.versions[0]}"
        checked += f"–{self.versions[-1]}" if len(self.versions) > 1 else ""
        counts = f"{_counted(self.errors, 'error')}, {_counted(self.warnings, 'warning')}"
        return printable("\n".join([*lines, f"{checked}, {len(all_rules())} rules: {counts}"]))


def verify_spec(
    spec: Spec,
    build: Path,
    versions: Sequence[str] = (),
    progress: Progress | None = None,
    *,
    live: str | None = None,
    accepted: Collection[str] = (),
) -> Verification:
    """Checks the manifests in a build folder, or those that the spec renders if there are none yet. If `live` is the
    address of a running server, its metrics page is checked too."""
    plan = make_plan(spec, build)
    check_evidence(spec, plan.evidence, accepted)
    fresh, folder, notes = locate_rendered(render_objects(plan)), build / MANIFESTS_FOLDER, []
    documents = fresh
    if folder.is_dir():
        documents = read_objects(folder)
        if sorted(map(_key, documents)) != sorted(map(_key, fresh)):
            notes.append(f"{folder} is out of date, the spec now renders something else: marina manifests {spec.file}")
    asked = _ordered(versions) or SUPPORTED_VERSIONS
    usable = [version for version in asked if _minor(version) >= _minor(plan.oldest_kubernetes)]
    if not usable:
        raise InputError(f"`--kubernetes`: the spec needs {plan.oldest_kubernetes} or later")
    if len(usable) < len(asked):
        notes.append(f"the spec needs Kubernetes {plan.oldest_kubernetes} or later")
    origin = str(folder) if documents is not fresh else f"{spec.file}, as rendered"
    verified = _verified(origin, documents, Scope(tuple(usable), plan), notes, progress)
    if not live:
        return verified
    findings = verified.findings + check_live(spec, live)
    return replace(verified, findings=findings, notes=[*notes, f"{live}: its metrics were checked too"])


def verify_folder(folder: Path, versions: Sequence[str] = (), progress: Progress | None = None) -> Verification:
    """Checks the objects in a folder, whoever wrote them."""
    scope = Scope(tuple(_ordered(versions)) or SUPPORTED_VERSIONS)
    documents = read_objects(folder)
    notes = [note for note in (describe_unapplied(folder), _describe_loose(documents)) if note]
    return _verified(str(folder), documents, scope, notes, progress)


def explain_rule(name: str) -> Rule:
    """The rule with this id. Raises InputError with the nearest id if there is none."""
    known = {rule.id: rule for rule in all_rules()}
    if name not in known:
        near = nearest(name, known)
        text = f"did you mean `{near}`?" if near else f"allowed: {listed(known)}"
        raise InputError(f"`--explain`: got `{name}`, {text}", hint=near and f"marina verify --explain {near}")
    return known[name]


def _verified(
    origin: str, documents: list[LocatedDocument], scope: Scope, notes: list[str], progress: Progress | None
) -> Verification:
    findings = verify(documents, scope, progress)
    return Verification(origin, len(documents), scope.versions, findings, notes)


def _describe_loose(documents: list[LocatedDocument]) -> str:
    """The Services whose pods are not here; empty if there are none, or if an operator may make them."""
    application = Application(tuple(documents))
    selectors = [service.root.at("spec", "selector") for service in application.of("Service")]
    loose = [place.document for place in selectors if place.texts and not application.selected(place, plain=True)]
    if not loose or not application.is_whole:
        return ""
    named = ", ".join(service.reference for service in loose[:_SHOWN])
    more = f" and {len(loose) - _SHOWN} more" if len(loose) > _SHOWN else ""
    return f"no pods here for {named}{more}: if another folder has them, check both as one"


def _key(document: LocatedDocument) -> str:
    return repr(document.data)


def _ordered(versions: Sequence[str]) -> list[str]:
    for version in versions:
        if not re.fullmatch(r"1\.[0-9]{1,3}", version):
            raise InputError(
                f"`--kubernetes`: got `{version}`, allowed: {listed(SUPPORTED_VERSIONS)}", hint="--kubernetes 1.34"
            )
    return sorted(set(versions), key=_minor)


def _minor(version: str) -> int:
    return int(version.partition(".")[2])


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
