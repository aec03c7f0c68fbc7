"""What the linter reports about one line of a file."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["error", "warning"]


@dataclass(frozen=True)
class Finding:
    """One problem in a file. `error`: TorchServe will not do what is written; `warning`: it will, but that is a known
    trap."""

    file: str
    line: int
    key: str
    level: Level
    rule: str
    """A short id that stays the same in all releases."""
    text: str
    hint: str | None = None
    """What to type."""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}: "
        return f"{place}`{self.key}`: {self.text}" if self.key else place + self.text


@dataclass(frozen=True)
class Mistake:
    """A problem with a key, before its file and line are known."""

    key: str
    level: Level
    rule: str
    text: str
    hint: str | None = None

    def at(self, file: str, line: int) -> Finding:
        return Finding(file, line, self.key, self.level, self.rule, self.text, self.hint)
