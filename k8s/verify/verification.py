"""`marina verify`: checks a spec's manifests, and presents the findings."""

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from marina.config.errors import InputError, listed, nearest, printable
from marina.config.progress import Progress
from marina.config.spec import Spec
from marina.k8s.manifests import (
    SUPPORTED_VERSIONS,
    Files,
    Plan,
    check_evidence,
    make_plan,
    manifests_folder,
    render_objects,
)
from marina.k8s.platforms import plan_for
from marina.k8s.verify.live import check_live
from marina.k8s.verify.objects import Objects, locate_rendered, read_folder
from marina.k8s.verify.rule import Rule, Violation
from marina.k8s.verify.rules import between, gateway, origin, pods, spot


@dataclass(frozen=True)
class Verification:
    """Every finding, where the objects come from, how many they are, and remarks about the check itself."""

    origin: str
    objects: int
    versions: tuple[str, ...]
    findings: list[Violation]
    notes: list[str]

    @property
    def errors(self) -> int:
        return sum(finding.level == "error" for finding in self.findings)

    def to_data(self) -> dict[str, Any]:
        """The record that `--json` prints."""
        warnings = len(self.findings) - self.errors
        counts = {"objects": self.objects, "rules": len(all_rules()), "errors": self.errors, "warnings": warnings}
        findings = [asdict(finding) | {"line": finding.line or None} for finding in self.findings]
        checked = {"origin": self.origin, "versions": list(self.versions), "notes": self.notes}
        return {"schema": "marina.verify/1", **checked, **counts, "findings": findings}

    def to_text(self) -> str:
        """A paragraph per finding, and a last line with the counts."""
        lines = [f"{finding.level}: {finding} ({finding.rule})\n  hint: {finding.hint}" for finding in self.findings]
        checked = f"{_counted(self.objects, 'object')} of {self.origin}, Kubernetes {self.versions[0]}"
        checked += f"–{self.versions[-1]}" if len(self.versions) > 1 else ""
        counts = f"{_counted(self.errors, 'error')}, {_counted(len(self.findings) - self.errors, 'warning')}"
        return printable("\n".join([*lines, f"{checked}, {len(all_rules())} rules: {counts}"]))


def all_rules() -> list[Rule]:
    """Every rule, in the order of the page about them."""
    return [*origin.RULES, *pods.RULES, *between.RULES, *gateway.RULES, *spot.RULES]


def verify(files: Files, plan: Plan, versions: Sequence[str] = SUPPORTED_VERSIONS) -> list[Violation]:
    """Every finding about the rendered objects of a plan, sorted by file and line."""
    return _check(Objects(tuple(locate_rendered(files)), plan, tuple(versions)))


def verify_spec(
    spec: Spec,
    build: Path,
    versions: Sequence[str] = (),
    progress: Progress | None = None,
    *,
    live: str | None = None,
    accepted: Collection[str] = (),
    output_format: str = "files",
) -> Verification:
    """Checks the manifests of a format in a build folder, or those that the spec renders if there are none yet. If
    `live` is the address of a running server, its metrics page is checked too."""
    plan = plan_for(make_plan(spec, build), build, output_format)
    check_evidence(spec, plan.evidence, accepted)
    folder, notes = manifests_folder(plan, build), list[str]()
    written = folder.is_dir()
    documents = read_folder(folder) if written else locate_rendered(render_objects(plan))
    possible = SUPPORTED_VERSIONS[SUPPORTED_VERSIONS.index(plan.oldest_kubernetes) :]
    usable = tuple(version for version in possible if version in versions or not versions)
    for version in versions:
        if version not in SUPPORTED_VERSIONS:
            text = f"`--kubernetes`: got `{version}`, allowed: {listed(SUPPORTED_VERSIONS)}"
            raise InputError(text, hint="--kubernetes 1.34")
    if not usable:
        raise InputError(f"`--kubernetes`: the spec needs {plan.oldest_kubernetes} or later")
    if len(usable) < len(set(versions or SUPPORTED_VERSIONS)):
        notes.append(f"the spec needs Kubernetes {plan.oldest_kubernetes} or later")
    with (progress or Progress(quiet=True)).step(f"{len(all_rules())} rules"):
        findings = _check(Objects(tuple(documents), plan, usable, written))
    if live:
        findings += check_live(spec, live)
        notes.append(f"{live}: its metrics were checked too")
    origin_text = str(folder) if written else f"{spec.file}, as rendered"
    return Verification(origin_text, len(documents), usable, findings, notes)


def explain_rule(name: str) -> Rule:
    """The rule with this id. Raises InputError with the nearest id if there is none."""
    known = {rule.id: rule for rule in all_rules()}
    if name not in known:
        near = nearest(name, known)
        text = f"did you mean `{near}`?" if near else f"allowed: {listed(known)}"
        raise InputError(f"`--explain`: got `{name}`, {text}", hint=near and f"marina verify --explain {near}")
    return known[name]


def _check(objects: Objects) -> list[Violation]:
    findings = []
    # Without the server's container, the other rules have nothing to compare with.
    for rule in all_rules() if objects.server.given else origin.RULES:
        for remark in rule.check(objects):
            at = remark.at
            place, level = (at.document.file, at.line, at.document.reference, at.field), remark.level or rule.level
            findings.append(Violation(*place, rule.id, level, remark.text, remark.hint or rule.fix))
    return sorted(findings)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
