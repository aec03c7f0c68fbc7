"""What the linter says about one line of a file that a user brings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["error", "warning"]


@dataclass(frozen=True)
class Finding:
    """`error`: TorchServe will not do what is written; `warning`: it will, and that is a known trap."""

    file: str
    line: int
    key: str
    level: Level
    rule: str
    """A short id that stays the same over releases."""
    text: str
    hint: str | None = None
    """What to type."""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}: "
        return f"{place}`{self.key}`: {self.text}" if self.key else place + self.text


@dataclass(frozen=True)
class Mistake:
    """A finding before it has a place."""

    key: str
    level: Level
    rule: str
    text: str
    hint: str | None = None

    def at(self, file: str, line: int) -> Finding:
        return Finding(file, line, self.key, self.level, self.rule, self.text, self.hint)
