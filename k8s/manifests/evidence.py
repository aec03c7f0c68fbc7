"""Reads `evidence.json` of a build folder, and compares it with what is deployed."""

import math
from collections.abc import Collection
from pathlib import Path

from marina.config.errors import InputError
from marina.config.measured import Evidence
from marina.config.record import Package, read_document
from marina.config.spec import Spec


def read_evidence(folder: Path, package: Package | None, *, spec_file: Path) -> Evidence | None:
    """Reads `evidence.json` in a build folder; None if there is none. Raises InputError if its status is not PASS, or
    if it was measured on another package."""
    file = folder / "evidence.json"
    hint = f"marina calibrate {spec_file}, or delete {file} to go without"
    evidence = read_document(file, Evidence, hint)
    if evidence is None:
        return None
    if evidence.status != "PASS":
        reasons = "; ".join(reason.text for reason in evidence.reasons) or "no reason given"
        raise InputError(f"{file}: is {evidence.status}, so it cannot be used: {reasons}", hint=hint)
    run = evidence.at_70_percent
    if evidence.knee and run and not math.isclose(evidence.knee.rps, run.rate / 0.7, rel_tol=0.01):
        text = f"{file}: `knee.rps`: got {evidence.knee.rps:g}, but {run.rate / 0.7:.4g} was measured: it was edited"
        raise InputError(text, hint=f"{hint}, and set `scaling.target`")
    if package is None:
        text = f"{file}: measured on a package, but there is no `package.json` beside it to compare with"
        raise InputError(text, hint=f"marina package {spec_file}")
    if evidence.package != package.sha256:
        measured = f"sha256 {evidence.package[:12]}…" if evidence.package else "an unknown package"
        raise InputError(f"{file}: measured on {measured}, but the package is now {package.sha256[:12]}…", hint=hint)
    return evidence


def check_evidence(spec: Spec, evidence: Evidence | None, accepted: Collection[str]) -> None:
    """Raises InputError if a pod differs from the measured server in its number of cores or its processor. `accepted`
    names the differences to ignore, `evidence-cores` or `evidence-processor`."""
    server = evidence.server if evidence else None
    if server is None:
        return
    wanted, measured = spec.kubernetes.resources.processor, server.machine.processor
    if server.cores != spec.cores and "evidence-cores" not in accepted:
        text = f"measured with {server.cores:g} cores, a pod has {spec.cores:g} (`kubernetes.resources.cpu`)"
        hint = f"marina calibrate {spec.file} on a machine with as many cores, or --accept evidence-cores"
        raise InputError(f"evidence.json: {text}", hint=hint)
    if wanted is not None and wanted != measured and "evidence-processor" not in accepted:
        text = f"measured on `{measured}`, pods run on `{wanted}` (`kubernetes.resources.processor`)"
        hint = f"marina calibrate {spec.file} on a machine with that processor, or --accept evidence-processor"
        raise InputError(f"evidence.json: {text}", hint=hint)
