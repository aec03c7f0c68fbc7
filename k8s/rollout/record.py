"""`rollout.json`: what a deploy, rollback or delete did, and how it ended."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from marina.config.errors import MarinaError
from marina.config.record import write_json
from marina.k8s.rollout.apply import ObjectChange
from marina.k8s.rollout.history import Placement
from marina.k8s.rollout.inference import Canary
from marina.k8s.rollout.wait import WaitResult

SCHEMA = "marina.rollout/2"

Result = Literal["", "deleted", "deployed", "dry-run", "failed", "interrupted", "rolled back", "unchanged"]


@dataclass(frozen=True)
class RolloutOptions:
    """The options of the verbs that change a cluster."""

    timeout_s: float | None = None
    """How long a rollout may take; None: as long as it makes progress."""
    force: bool = False
    """Take over fields that others own."""
    go_back: bool = True
    """Go back to the revision before if the rollout fails."""
    dry_run: bool = False
    again: bool = False
    """Deploy a package that a gate refused, or that was rolled back."""
    accepted: Collection[str] = ()
    """Ids of the blockers to ignore."""


@dataclass(frozen=True)
class AnswersAlike:
    """How many inputs both revisions answered alike: the same class or text, or numbers within the tolerance."""

    inputs: int
    same: int
    differing: tuple[str, ...]
    """The names of some that they answered otherwise."""

    def __str__(self) -> str:
        named = f", not {', '.join(self.differing)}" if self.differing else ""
        return f"{self.same:,} of {self.inputs:,} inputs answered alike{named}"


@dataclass(frozen=True)
class GateResult:
    """How a gate ended."""

    status: str
    """PASS, FAIL or INVALID."""
    text: str
    """Its figures on one line, and why it is not PASS."""
    verdict: dict[str, Any]
    """The whole verdict; empty if the new pod failed before any request was compared."""
    answers: "AnswersAlike | None" = None
    """How many inputs both revisions answered alike; None if there was nothing to ask."""
    sent: int = 0
    """How many requests Marina itself sent to both revisions, where too little traffic came."""

    def to_data(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return self.text


@dataclass
class RolloutRecord:
    """The record of one deploy, rollback or delete. It is filled in step by step, so that it is true whenever it is
    written."""

    verb: str
    name: str
    namespace: str
    context: str
    server: str
    result: Result = ""
    revision: int = 0
    """The revision that was deployed or restored."""
    previous: int = 0
    """The revision that ran before; 0 if there was none."""
    running: int = 0
    """The revision that serves at the end; 0 if none does, or if the verb ended half-way."""
    image: str = ""
    site: dict[str, Any] = field(default_factory=dict)
    """What the checks of the cluster found."""
    pruned: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    """The objects that a delete left, because marina no longer manages them."""
    error: str = ""
    next: str = ""
    """What to type next."""
    started: str = field(default_factory=lambda: now())
    finished: str = ""
    changes: list[ObjectChange] = field(default_factory=list)
    waited: WaitResult | None = None
    canary: Canary | None = None
    gate: GateResult | None = None
    """What the gate said; None if none stood."""
    back: "RolloutRecord | None" = None
    """The rollback that followed a failure."""

    @property
    def exit_code(self) -> int:
        return 1 if self.result in ("failed", "interrupted") else 0

    def to_text(self) -> str:
        lines = [_headline(self)]
        if self.result == "dry-run":
            lines += _diff(self)
        if self.result in ("failed", "interrupted") and self.waited:
            lines += [f"  {cause.with_hint()}".replace("\n", "\n  ") for cause in self.waited.causes]
        if self.canary and self.result in ("deployed", "unchanged", "rolled back"):
            lines.append(f"  inference: {self.canary}")
        if self.gate and self.gate.status == "PASS":
            lines.append(f"  gate: {self.gate}")
        if self.back:
            lines.append(_headline(self.back))
        return "\n".join(lines + ([f"  next: {self.next}"] if self.next else []))

    def to_data(self) -> dict[str, Any]:
        waited, data = self.waited, dict(vars(self))
        for name in ("changes", "waited", "canary", "gate", "back"):
            del data[name]
        return {
            "schema": SCHEMA,
            **data,
            "objects": [change.to_data() for change in self.changes],
            "rollout": {
                "complete": waited.complete,
                "text": waited.summary,
                "seconds": round(waited.seconds, 1),
                "pods": [vars(pod) for pod in waited.pods],
                "reasons": [cause.to_data() for cause in waited.causes],
            }
            if waited
            else None,
            "canary": self.canary.to_data() if self.canary else None,
            "gate": self.gate.to_data() if self.gate else None,
            "rollback": self.back.to_data() if self.back else None,
        }


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def start_record(verb: str, placement: Placement, *, image: str = "") -> RolloutRecord:
    """The record of a verb that has just begun."""
    cluster = placement.cluster
    return RolloutRecord(verb, placement.name, placement.namespace, cluster.context, cluster.server, image=image)


@contextmanager
def recorded(record: RolloutRecord, file: Path | None) -> Iterator[None]:
    """Writes the record when its context ends, also after an error; not if `file` is None."""
    try:
        yield
    except MarinaError as err:
        record.result, record.error = "failed", err.message
        raise
    except KeyboardInterrupt:
        record.result, record.error = "interrupted", record.error or f"interrupted at {now()}"
        raise
    finally:
        record.finished = now()
        if file:
            write_json(file, record.to_data())


def _headline(record: RolloutRecord) -> str:
    where = f"{record.namespace} (context {record.context})"
    subject = f"{record.name} revision {record.revision} in {where}"
    changed = [change for change in record.changes if change.action != "none"]
    counts = f"{len(changed)} of {len(record.changes)} objects changed, {len(record.pruned)} deleted"
    pods = record.waited.summary if record.waited else ""
    match record.result:
        case "deployed":
            return f"deployed {subject}: {pods}; {counts}"
        case "unchanged":
            return f"nothing to do: {subject} is already deployed: {pods}"
        case "dry-run" if record.revision == record.previous:
            return f"nothing to do: {subject} is already deployed"
        case "dry-run":
            return f"would deploy {subject}: {counts}"
        case "rolled back":
            return f"rolled back to {subject}: {pods}; {counts}"
        case "deleted":
            left = f", but not {', '.join(record.left)}, which others manage now" if record.left else ""
            return f"deleted {record.name} from {where}: {len(record.pruned)} objects{left}"
        case "interrupted":
            return f"{record.verb} of {subject} was {record.error}"
        case _:
            return f"{record.verb} of {subject} {record.result}: {record.error}"


def _diff(record: RolloutRecord) -> list[str]:
    signs = {"create": "+", "change": "~", "unknown": "?"}
    lines = []
    for change in record.changes:
        if change.action != "none":
            lines += [f"{signs[change.action]} {change.ref}", *(f"    {line}" for line in change.diff)]
        lines += [f"    warning: {warning}" for warning in change.warnings]
    return lines + [f"- {name}" for name in record.pruned]
