"""What is signed: in-toto statements, one for each predicate, all about the same MAR and image."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marina.config.distribution import distribution_version
from marina.config.errors import InputError
from marina.config.measured import VerdictHead, VerdictStatus
from marina.config.record import ImageRecord, Package, check_mar, file_sha256, read_document, read_package
from marina.config.signatures import PASSED, PREDICATES, STATEMENT_TYPE
from marina.config.spec import Spec

# The predicate knows no verdict that nothing can be concluded from; a warning is what it has nearest to it.
_RESULTS: dict[VerdictStatus, str] = {"PASS": PASSED, "FAIL": "FAILED", "INVALID": "WARNED"}
_LISTS = {"PASS": "passedTests", "FAIL": "failedTests", "INVALID": "warnedTests"}


@dataclass(frozen=True)
class Subjects:
    """What the statements are about, from the records in a build folder."""

    package: Package
    image: ImageRecord | None
    """The pushed image; None if there is none."""
    verdict: VerdictHead | None
    bill: dict[str, Any] | None

    def to_data(self) -> list[dict[str, Any]]:
        """The subjects as in-toto has them: names, and what they are by their hashes."""
        named = [(self.package.mar, self.package.sha256)]
        if self.image and self.image.digest:
            named.append((self.image.ref, self.image.digest.removeprefix("sha256:")))
        return [{"name": name, "digest": {"sha256": sha256}} for name, sha256 in named]


def read_subjects(spec: Spec, folder: Path) -> Subjects:
    """Reads the records of a spec's package. InputError if they do not belong together."""
    package = read_package(folder)
    check_mar(folder, package, f"marina package {spec.file}")
    image = read_document(folder / "image.json", ImageRecord, build := f"marina image {spec.file} --push")
    if image and image.package_sha256 not in (None, package.sha256):
        text = f"{folder / 'image.json'}: contains package {image.package_sha256[:12]}…, but the package is now "
        raise InputError(text + f"{package.sha256[:12]}…", hint=build)
    bill = folder / "bom.json"
    return Subjects(
        package=package,
        image=image if image and image.digest else None,
        verdict=_verdict(spec, folder, package),
        bill=json.loads(bill.read_bytes()) if image and bill.is_file() else None,
    )


def _verdict(spec: Spec, folder: Path, package: Package) -> VerdictHead | None:
    file, hint = folder / "verdict.json", f"marina loadtest {spec.file}"
    verdict = read_document(file, VerdictHead, hint)
    tested = verdict and (verdict.tested.served or verdict.tested.package)
    if verdict and tested != package.sha256:
        got = f"{tested[:12]}…" if tested else "an unknown package"
        raise InputError(f"{file}: is about {got}, but the package is {package.sha256[:12]}…", hint=hint)
    return verdict


def statements(subjects: Subjects, folder: Path) -> dict[str, dict[str, Any]]:
    """The statements by what they say: `package`, and as far as there are any `verdict` and `bill`."""
    package = {"marina": distribution_version(), "record": subjects.package.record.model_dump(mode="json")}
    predicates: dict[str, Any] = {"package": package}
    if subjects.verdict:
        predicates["verdict"] = _test_result(subjects.verdict, folder)
    if subjects.bill:
        predicates["bill"] = subjects.bill
    about = subjects.to_data()
    return {
        kind: {"_type": STATEMENT_TYPE, "subject": about, "predicateType": PREDICATES[kind], "predicate": predicate}
        for kind, predicate in predicates.items()
    }


def _test_result(head: VerdictHead, folder: Path) -> dict[str, Any]:
    """The verdict as in-toto's test result, with our own word and figures in the description of what was run."""
    verdict = head.verdict
    lists: dict[str, list[str]] = {name: [] for name in _LISTS.values()}
    for check in verdict.checks:
        lists[_LISTS[check.status]].append(check.objective)
    figures = {
        check.objective: {"measured": check.measured, "limit": check.limit, "unit": check.unit}
        for check in verdict.checks
    }
    record: dict[str, Any] = {
        "name": "verdict.json",
        "digest": {"sha256": head.sha256},
        "annotations": {
            "status": verdict.status,
            "at": head.at,
            "checks": figures,
            "reasons": [reason.text for reason in verdict.every_reason()],
        },
    }
    run = [record]
    evidence = folder / "evidence.json"
    if evidence.is_file():
        run.append({"name": evidence.name, "digest": {"sha256": file_sha256(evidence)}})
    return {"result": _RESULTS[verdict.status], "configuration": run, **lists}
