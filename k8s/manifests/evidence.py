"""What `marina calibrate` measured, as far as manifests need it: a reader of its own, because stages meet in files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict

from config.errors import InputError
from config.record import Package
from config.spec import Spec

SCHEMA: Final = "marina.evidence/1"


class _EvidencePart(BaseModel):
    # What calibrate adds later is none of our business; what we read must be there.
    model_config = ConfigDict(frozen=True, extra="ignore")


class KneeRecord(_EvidencePart):
    """The highest rate that meets the objective, requests/s."""

    rps: float


class MemoryRecord(_EvidencePart):
    """Peak resident memory of all processes of one server."""

    total_bytes: int


class ObjectiveRecord(_EvidencePart):
    """What the knee was searched for."""

    p99_ms: float
    error_rate: float


class MachineRecord(_EvidencePart):
    """Where it was measured."""

    cores: int
    cpu_limit: float | None = None

    @property
    def usable_cores(self) -> float:
        """Cores that the server could use there."""
        return min(self.cores, self.cpu_limit or self.cores)


class ServerMachineRecord(_EvidencePart):
    """The machine that the server ran on."""

    processor: str


class ServerRecord(_EvidencePart):
    """What the server could use there."""

    cores: float
    machine: ServerMachineRecord


class EvidenceRecord(_EvidencePart):
    """Measurements of one package; `sha256` is that of the file."""

    sha256: str
    package: str | None
    objective: ObjectiveRecord
    knee: KneeRecord | None
    cold_start_s: float | None
    memory: MemoryRecord | None
    machine: MachineRecord
    server: ServerRecord | None = None
    """None for a server that was there already."""

    @property
    def usable_cores(self) -> float:
        """Cores that the server could use, as far as that is known."""
        return self.server.cores if self.server else self.machine.usable_cores


def read_evidence(folder: Path, package: Package | None, *, spec_file: Path) -> EvidenceRecord | None:
    """`evidence.json` of a build folder, None when there is none; refused when it cannot be trusted or is of another
    package."""
    file = folder / "evidence.json"
    again = f"marina calibrate {spec_file}, or delete {file} to go without"
    try:
        text = file.read_bytes()
    except FileNotFoundError:
        return None
    try:
        data = json.loads(text)
        if data.get("schema") != SCHEMA:
            raise InputError(f"{file}: got schema `{data.get('schema')}`, allowed: `{SCHEMA}`", hint=again)
        evidence = EvidenceRecord.model_validate({**data, "sha256": hashlib.sha256(text).hexdigest()})
        if data.get("status") != "PASS":
            reasons = "; ".join(reason.get("text", "") for reason in data.get("reasons", [])) or "no reason given"
            raise InputError(f"{file}: is {data.get('status')}, so it cannot be used: {reasons}", hint=again)
    except (ValueError, AttributeError, TypeError) as err:
        raise InputError(f"{file}: not an evidence record of this version", hint=again) from err
    if package is None:
        text_ = f"{file}: measured on a package, but there is no `package.json` beside it to compare with"
        raise InputError(text_, hint=f"marina package {spec_file}")
    if evidence.package != package.sha256:
        measured = f"sha256 {evidence.package[:12]}…" if evidence.package else "an unknown package"
        raise InputError(f"{file}: measured on {measured}, but packaged is {package.sha256[:12]}…", hint=again)
    return evidence


def suppose_evidence(
    evidence: EvidenceRecord | None, knee_rps: float | None, cold_start_s: float | None
) -> EvidenceRecord:
    """What was measured, or nothing, with another knee or cold start in its place."""
    if evidence is None:
        nothing = {"sha256": "", "package": None, "knee": None, "cold_start_s": None, "memory": None}
        zero = {"objective": {"p99_ms": 0, "error_rate": 0}, "machine": {"cores": 0}}
        evidence = EvidenceRecord.model_validate(nothing | zero)
    changes: dict[str, object] = {} if knee_rps is None else {"knee": KneeRecord(rps=knee_rps)}
    changes |= {} if cold_start_s is None else {"cold_start_s": cold_start_s}
    return evidence.model_copy(update=changes)


def check_machine(spec: Spec, evidence: EvidenceRecord | None, accepted: Collection[str]) -> None:
    """InputError where the measurement does not hold for a pod, because the server had other cores; `accepted` names
    what is used nevertheless."""
    server = evidence.server if evidence else None
    if server is None:
        return
    processor, has = spec.kubernetes.resources.processor, server.machine.processor
    if server.cores != spec.cores and "evidence-cores" not in accepted:
        text = f"measured with {server.cores:g} cores, a pod has {spec.cores:g} (`kubernetes.resources.cpu`)"
        hint = f"marina calibrate {spec.file} on a machine with as many, or --accept evidence-cores"
        raise InputError(f"evidence.json: {text}", hint=hint)
    if processor is not None and processor != has and "evidence-processor" not in accepted:
        text = f"measured on `{has}`, pods run on `{processor}` (`kubernetes.resources.processor`)"
        hint = f"marina calibrate {spec.file} on such a machine, or --accept evidence-processor"
        raise InputError(f"evidence.json: {text}", hint=hint)
