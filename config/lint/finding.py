"""What the linter reports about one line of a file."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

Level = Literal["error", "warning"]


@dataclass(frozen=True)
class Finding:
    """One problem in a file. `error`: TorchServe will not do what is written; `warning`: it will, but that is a known
    trap."""

    key: str
    level: Level
    rule: str
    """A short id that stays the same in all releases."""
    text: str
    hint: str | None = None
    """What to type."""
    line: int = 0
    """0 until it is known; a finding about a key that is not in the file is on line 1."""
    file: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}: "
        return f"{place}`{self.key}`: {self.text}" if self.key else place + self.text


def on_line(line: int, findings: Iterable[Finding]) -> Iterator[Finding]:
    """The findings, those without a line on this one."""
    return (finding if finding.line else replace(finding, line=line) for finding in findings)
