"""Puts together what the records in a build folder say of a release, and what changed since the one before."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from marina.archiver.releasing.page import release_html
from marina.archiver.signing import read_subjects
from marina.archiver.signing.statements import Subjects
from marina.config.errors import ArchiveError
from marina.config.measured import Evidence, VerdictStatus
from marina.config.record import Document, Part, read_document, write_json, write_text
from marina.config.signatures import FOLDER, PublicKey, check_signatures, verify_keys
from marina.config.spec import Spec

# The releases that were described, one file each, in the build folder.
KEPT = "releases"


class Change(Part):
    """One thing that differs from the release before."""

    what: str
    before: str | None
    now: str | None


class Gap(Part):
    """One thing that an approver would miss, and how to get it."""

    text: str
    hint: str


class Release(Document):
    """The record `release.json`."""

    schema_: Literal["marina.release/1"] = "marina.release/1"
    name: str
    version: str
    at: str
    package: str
    """The sha256 of the MAR."""
    image: str | None
    """The image by its digest."""
    status: VerdictStatus | None
    """The verdict of the load test; None if there was none."""
    missing: tuple[Gap, ...]
    facts: dict[str, dict[str, str]]
    """What the records say, by topic."""
    before: str | None
    """The sha256 of the package of the release before; None for the first one."""
    changed: tuple[Change, ...]
    compared: dict[str, Any]
    """What the next release is compared with."""

    @property
    def exit_code(self) -> int:
        if self.status == "INVALID":
            return 3
        return 1 if self.status == "FAIL" or self.missing else 0


def describe_release(spec: Spec, folder: Path, at: str) -> Release:
    """Reads the records, and writes `release.json` and `release.html`. InputError if they do not belong together."""
    subjects = read_subjects(spec, folder)
    evidence = read_document(folder / "evidence.json", Evidence, f"marina calibrate {spec.file}")
    compared, signatures = _compared(spec, subjects), _signatures(spec, folder, subjects)
    facts = _facts(subjects, evidence) | {"Gate": _gate(folder, subjects), "Signatures": signatures}
    before = _before(folder, subjects.package.sha256)
    release = Release(
        name=spec.name,
        version=spec.version,
        at=at,
        package=subjects.package.sha256,
        image=subjects.image.reference if subjects.image else None,
        status=subjects.verdict.verdict.status if subjects.verdict else None,
        missing=tuple(_missing(spec, subjects, evidence, signatures)),
        facts={title: known for title, known in facts.items() if known},
        before=before.package if before else None,
        changed=tuple(_changes(before.compared, compared)) if before else (),
        compared=compared,
    )
    write_json(folder / KEPT / f"{release.package[:12]}.json", release.to_data())
    write_json(folder / "release.json", release.to_data())
    write_text(folder / "release.html", release_html(release, subjects.verdict))
    return release


def _facts(subjects: Subjects, evidence: Evidence | None) -> dict[str, dict[str, str]]:
    package, image, bill = subjects.package, subjects.image, subjects.bill
    record = package.record
    facts = {
        "Package": {
            "sha256": package.sha256,
            "size": f"{package.bytes / 1e6:.1f} MB",
            "agreement": record.agreement.text,
            "compiled": f"{record.compile}, {record.precision}, for {record.device}",
            "handler": record.handler,
        },
        "Sources": {source: pin.version for source, pin in record.pins.items()},
        "Image": {},
        "Capacity": {},
    }
    if image:
        facts["Image"] = {"reference": image.reference, "size": f"{image.bytes / 1e6:.0f} MB", "base": image.base}
    if bill:
        facts["Image"]["bill of materials"] = f"{len(bill.get('components', ()))} components"
    if evidence and evidence.package == package.sha256:
        knee = f"{evidence.knee.rps:.3g} requests/s per pod" if evidence.knee else "not found"
        facts["Capacity"] = {"highest rate that meets the objective": knee, "measured": evidence.at}
        if evidence.cold_start_s:
            facts["Capacity"]["cold start"] = f"{evidence.cold_start_s:.1f} s"
        if evidence.costs and evidence.costs.judged is not None:
            costs = evidence.costs
            facts["Capacity"]["10,000 requests cost"] = f"{costs.judged:.3g} {costs.currency}"
    return facts


def _signatures(spec: Spec, folder: Path, subjects: Subjects) -> dict[str, str]:
    """Who demands a signature, and whether it counts."""
    if spec.serving.verify is None:
        return {}
    keys = verify_keys(spec)
    names = ", ".join(map(_key_name, keys))
    try:
        check_signatures(spec, folder / FOLDER, subjects.package.sha256)
    except ArchiveError as err:
        return {"demanded by": names, "refused": err.message}
    return {"demanded by": names, "accepted": "as a pod would"}


def _key_name(key: PublicKey) -> str:
    return key.name + (f" (until {key.until:%Y-%m-%d})" if key.until else "")


def _missing(spec: Spec, subjects: Subjects, evidence: Evidence | None, signatures: dict[str, str]) -> Iterator[Gap]:
    """What a release should have and has not."""
    record = subjects.package.record
    if subjects.verdict is None:
        yield Gap(text="no load test of this package", hint=f"marina loadtest {spec.file}")
    if evidence is None or evidence.package != subjects.package.sha256:
        text = "no calibration of this package: the autoscaler's target is a guess"
        yield Gap(text=text, hint=f"marina calibrate {spec.file}")
    if subjects.image is None:
        yield Gap(text="no image of this package was pushed", hint=f"marina image {spec.file} --push")
    if record.agreement.agreement is None:
        yield Gap(text=f"agreement {record.agreement.text}", hint=f"marina package {spec.file}")
    if "refused" in signatures:
        text = "pods would refuse it: a signature is missing or does not count"
        yield Gap(text=text, hint=f"marina sign {spec.file} --key release.key")


def _gate(folder: Path, subjects: Subjects) -> dict[str, str]:
    """What the gate of the last rollout said, if it was this image's."""
    try:
        rollout = json.loads((folder / "rollout.json").read_text(encoding="utf-8"))
        gate, image = rollout["gate"], rollout["image"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    if not gate or subjects.image is None or image != subjects.image.reference:
        return {}
    return {"verdict": gate["status"], "said": gate["text"]}


def _compared(spec: Spec, subjects: Subjects) -> dict[str, Any]:
    """What two releases are compared by: the spec, the record, the objective's figures and the image's parts."""
    record = subjects.package.record
    checks = subjects.verdict.verdict.checks if subjects.verdict else ()
    measured = [check for check in checks if check.measured is not None]
    components = subjects.bill.get("components", ()) if subjects.bill else ()
    return {
        "spec": _flat(spec.completed()),
        "package": {"agreement": record.agreement.text, "sha256": subjects.package.sha256}
        | {f"source {source}": pin.version for source, pin in record.pins.items()},
        "measured": {check.objective: f"{check.measured:.4g} {check.unit}" for check in measured},
        "image": {str(part.get("name")): str(part.get("version")) for part in components},
    }


def _flat(data: Any, place: str = "") -> dict[str, str]:
    """Nested data as one value for each field that is set."""
    if isinstance(data, Mapping):
        found: dict[str, str] = {}
        for name, value in data.items():
            found |= _flat(value, f"{place}.{name}" if place else str(name))
        return found
    return {} if data is None else {place: json.dumps(data, ensure_ascii=False) if not isinstance(data, str) else data}


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Change]:
    for topic, values in now.items():
        old = before.get(topic, {})
        for name in sorted({*values, *old}):
            if values.get(name) != old.get(name):
                yield Change(what=f"{topic}: {name}", before=old.get(name), now=values.get(name))


def _before(folder: Path, sha256: str) -> Release | None:
    """The release that was described last, other than this one."""
    kept = [read_document(file, Release, f"rm {file}") for file in (folder / KEPT).glob("*.json")]
    others = [release for release in kept if release and release.package != sha256]
    return max(others, key=lambda release: release.at, default=None)
