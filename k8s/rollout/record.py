"""`rollout.json`: what one deploy, rollback or delete did, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from k8s.rollout.apply import Change
from k8s.rollout.inference import Canary
from k8s.rollout.wait import Outcome

SCHEMA = "marina.rollout/1"

Result = Literal["", "deleted", "deployed", "dry-run", "failed", "interrupted", "rolled back", "unchanged"]


@dataclass
class Rollout:
    """Filled in step by step, so that it is true whenever it is written."""

    verb: str
    name: str
    namespace: str
    context: str
    server: str
    result: Result = ""
    revision: int = 0
    """The revision that this was about."""
    previous: int = 0
    """The one that ran before; 0 when there was none."""
    running: int = 0
    """The one that the cluster holds at the end."""
    image: str = ""
    site: dict[str, Any] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    pruned: list[str] = field(default_factory=list)
    outcome: Outcome | None = None
    canary: Canary | None = None
    error: str = ""
    back: Rollout | None = None
    """The rollback that followed a failure."""
    next: str = ""
    """What to type now."""
    started: str = field(default_factory=lambda: now())
    finished: str = ""

    @property
    def exit_code(self) -> int:
        return 1 if self.result in ("failed", "interrupted") else 0

    def to_data(self) -> dict[str, Any]:
        outcome, canary = self.outcome, self.canary
        return {
            "schema": SCHEMA,
            **{key: getattr(self, key) for key in _PLAIN},
            "objects": [change.to_data() for change in self.changes],
            "rollout": {
                "complete": outcome.complete,
                "text": outcome.why,
                "seconds": round(outcome.seconds, 1),
                "pods": [vars(pod) for pod in outcome.pods],
                "reasons": [reason.to_data() for reason in outcome.reasons],
            }
            if outcome
            else None,
            "canary": canary.to_data() if canary else None,
            "rollback": self.back.to_data() if self.back else None,
        }


_PLAIN = (
    "verb", "name", "namespace", "context", "server", "result", "revision", "previous", "running", "image", "site",
    "pruned", "error", "next", "started", "finished",
)  # fmt: skip


def now() -> str:
    """This moment, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def summary(record: Rollout) -> str:
    """What a person wants to know of it."""
    lines = [_headline(record)]
    if record.result == "dry-run":
        lines += _diff(record)
    if record.result in ("failed", "interrupted"):
        lines += [f"  {reason}".replace("\n", "\n  ") for reason in (record.outcome.reasons if record.outcome else ())]
    if record.canary and record.result in ("deployed", "unchanged", "rolled back"):
        lines.append(f"  inference: {record.canary}")
    if record.back:
        lines.append(_headline(record.back))
    return "\n".join(lines + ([f"  next: {record.next}"] if record.next else []))


def _headline(record: Rollout) -> str:
    what = f"{record.name} revision {record.revision} in {record.namespace} (context {record.context})"
    changed = [change for change in record.changes if change.action != "none"]
    counts = f"{len(changed)} of {len(record.changes)} objects changed, {len(record.pruned)} deleted"
    match record.result:
        case "deployed":
            return f"deployed {what}: {record.outcome.why if record.outcome else ''}; {counts}"
        case "unchanged":
            return f"nothing to do: {what} is what is there: {record.outcome.why if record.outcome else ''}"
        case "dry-run":
            return f"would deploy {what}: {counts}" if changed or record.pruned else f"nothing to do: {what} is there"
        case "rolled back":
            return f"rolled back to {what}: {record.outcome.why if record.outcome else ''}; {counts}"
        case "deleted":
            where = f"{record.namespace} (context {record.context})"
            return f"deleted {record.name} from {where}: {len(record.pruned)} objects"
        case _:
            return f"{record.result} {record.verb} of {what}: {record.error}"


def _diff(record: Rollout) -> list[str]:
    signs = {"create": "+", "change": "~", "unknown": "?"}
    lines = []
    for change in record.changes:
        if change.action != "none":
            lines.append(f"{signs[change.action]} {change.ref}")
            lines += [f"    {difference}" for difference in change.fields]
        lines += [f"    warning: {warning}" for warning in change.warnings]
    return lines + [f"- {name}" for name in record.pruned]
