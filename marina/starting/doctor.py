"""`doctor`: shows what this machine and its cluster have and lack, which verbs need it, and how to get it."""

import argparse
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from marina.arguments import add_verb, print_result
from marina.cleanup import cleanup_on_exit

_MARKS = {"ok": "ok", "missing": "--", "broken": "!!", "note": "i"}


@dataclass(frozen=True)
class ProbeResult:
    """What a probe found out about one thing."""

    name: str
    state: str
    """`ok`; `missing`; `broken`: installed, but not usable; `note`: usable, but worth knowing."""
    text: str
    wanted_by: str = ""
    """The verbs, or parts of them, that do not work without it."""
    hint: str | None = None
    """What to type."""
    local: bool = False
    """Whether package, serve and loadtest need it."""

    @property
    def fails(self) -> bool:
        return self.local and self.state in ("missing", "broken")


Probe = Callable[[], "list[ProbeResult]"]


def add_verbs(verbs: Any) -> None:
    add_verb(
        verbs,
        doctor,
        "show what is missing on this machine and in the cluster, and how to get it",
        "marina doctor",
        "marina doctor --json",
        spec=False,
    )


def doctor(options: argparse.Namespace) -> int:
    from marina.config.progress import Progress
    from marina.starting.doctor_cluster import CLUSTER
    from marina.starting.doctor_local import LOCAL

    with cleanup_on_exit(), Progress(quiet=options.quiet).step("examine this machine and its cluster"):
        findings = examine([*LOCAL, *CLUSTER])
    missing = missing_locally(findings)
    print_result(options, {"findings": list(map(asdict, findings)), "local_flow": not missing}, report(findings))
    return 1 if missing else 0


def examine(probes: Sequence[Probe]) -> list[ProbeResult]:
    """The results of all probes, in their order; they run at the same time, and each limits its own time."""
    pool = ThreadPoolExecutor(len(probes))
    try:
        return [finding for findings in pool.map(lambda probe: probe(), probes) for finding in findings]
    finally:
        # After Ctrl-C, what the probes have started must end first.
        pool.shutdown(wait=False)


def missing_locally(findings: Sequence[ProbeResult]) -> list[str]:
    """The names of what is missing or broken although package, serve or loadtest need it."""
    return [finding.name for finding in findings if finding.fails]


def report(findings: Sequence[ProbeResult]) -> str:
    """One line for each result; below those that are not ok, the verbs that need it, and what to type."""
    lines = []
    for finding in findings:
        lines.append(f"{_MARKS[finding.state]:<3}{finding.name:<20}{finding.text}")
        if finding.state != "ok" and finding.wanted_by:
            lines.append(f"{'':<23}needed by: {finding.wanted_by}")
        if finding.state != "ok" and finding.hint:
            lines.append(f"{'':<23}type: {finding.hint}")
    missing = missing_locally(findings)
    if missing:
        lines.append(f"\npackage, serve and loadtest need {', '.join(missing)}")
    else:
        lines.append("\npackage, serve and loadtest have everything they need")
    return "\n".join(lines)
