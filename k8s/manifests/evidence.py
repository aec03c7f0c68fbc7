"""Reads the part of `evidence.json` that manifests need. `marina calibrate` writes the file; stages exchange files, not
imports, so this reader has its own classes."""

import math
from collections.abc import Collection
from pathlib import Path
from typing import Annotated

from pydantic import Field

from marina.config.errors import InputError
from marina.config.record import Package
from marina.config.spec import Spec
from marina.k8s.manifests.records import RecordPart, StageRecord, read_stage_record

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class MeasuredKnee(RecordPart):
    """The highest rate that meets the objective, requests/s."""

    rps: Positive


class MeasuredLatency(RecordPart):
    """A run at a rate, requests/s."""

    rate: Positive


class MeasuredMemory(RecordPart):
    """Peak resident memory of a server, all processes together."""

    total_bytes: Annotated[int, Field(gt=0)]


class MeasuredObjective(RecordPart):
    """The objective that the knee was searched for."""

    p99_ms: float
    error_rate: float
    ttft_p99_ms: float | None = None
    itl_p99_ms: float | None = None
    goodput: float | None = None


class GeneratorMachine(RecordPart):
    """The machine that sent the load."""

    cores: int
    cpu_limit: float | None = None

    @property
    def usable_cores(self) -> float:
        """Cores that processes could use there."""
        return min(self.cores, self.cpu_limit or self.cores)


class ServerMachine(RecordPart):
    """The machine that the server ran on."""

    processor: str


class MeasuredServer(RecordPart):
    """The cores that the server could use, and its machine."""

    cores: float
    machine: ServerMachine


class InvalidReason(RecordPart):
    """Why the measurement is INVALID."""

    text: str


class EvidenceRecord(StageRecord):
    """The measurements of one package."""

    status: str
    reasons: tuple[InvalidReason, ...]
    package: str | None
    objective: MeasuredObjective
    knee: MeasuredKnee | None
    at_70_percent: MeasuredLatency | None = None
    """The run at 70 % of the knee."""
    cold_start_s: Positive | None
    arrivals: str = "poisson"
    memory: MeasuredMemory | None
    machine: GeneratorMachine
    server: MeasuredServer | None = None
    """None if calibrate measured a server that was already running."""

    @property
    def usable_cores(self) -> float:
        """Cores that the server could use. For a server that was already running, those of the load generator's
        machine."""
        return self.server.cores if self.server else self.machine.usable_cores


def read_evidence(folder: Path, package: Package | None, *, spec_file: Path) -> EvidenceRecord | None:
    """Reads `evidence.json` in a build folder; None if there is none. Raises InputError if its status is not PASS, or
    if it was measured on another package."""
    file = folder / "evidence.json"
    hint = f"marina calibrate {spec_file}, or delete {file} to go without"
    evidence = read_stage_record(file, EvidenceRecord, "evidence", hint)
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


def override_evidence(
    evidence: EvidenceRecord | None, knee_rps: float | None, cold_start_s: float | None
) -> EvidenceRecord:
    """The evidence with another knee or cold start in place of the measured one. Works without evidence, too."""
    evidence = evidence or EvidenceRecord(
        sha256="",
        status="PASS",
        reasons=(),
        package=None,
        objective=MeasuredObjective(p99_ms=0, error_rate=0),
        knee=None,
        cold_start_s=None,
        memory=None,
        machine=GeneratorMachine(cores=0),
    )
    changes: dict[str, object] = {} if knee_rps is None else {"knee": MeasuredKnee(rps=knee_rps)}
    changes |= {} if cold_start_s is None else {"cold_start_s": cold_start_s}
    return evidence.model_copy(update=changes)


def check_evidence(spec: Spec, evidence: EvidenceRecord | None, accepted: Collection[str]) -> None:
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
