"""Every error Marina raises on purpose, with the exit code it ends in.

    MarinaError                    what went wrong, where, what was given, what is allowed
    ├── InputError           2     a file or an option is wrong
    │   ├── SpecError        2     one spec, all its problems at once
    │   ├── SourceError      2     the model, its weights or its data cannot be had
    │   └── ArchiveError     2     a MAR is damaged, foreign or for another machine
    ├── ToolMissing          2     a program this step needs is not on the machine
    ├── ClusterError         2     a cluster cannot be reached, does not allow or does not have what is needed
    └── Refused              1     the work was done and the answer is no
        └── AgreementError   1     an artifact does not answer as the eager model does

Messages have no full stop, put values in backticks and sort lists; `hint` says what to type.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass

_TERMINAL_CODES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(\x07|\x1b\\)?|\x1b[@-Z\\-_]?")


def printable(text: str) -> str:
    """A text without what a terminal would obey: colours and moves of the cursor are taken out, and other characters
    that are not to be seen are written as `\\x07` or `\\u202e`; line ends and tabs stay."""
    text = _TERMINAL_CODES.sub("", text)
    return "".join(sign if sign in "\n\t" or sign.isprintable() else ascii(sign)[1:-1] for sign in text)


class MarinaError(Exception):
    """Raised for what the user can act on; anything else is a bug and keeps its traceback."""

    exit_code = 2

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        # What other programs and foreign files bring into a message must not reach a terminal as it is.
        self.message = printable(message)
        self.hint = None if hint is None else printable(hint)
        super().__init__(self.message)

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n\nhint: {self.hint}"


class InputError(MarinaError):
    """Raised when a file or an option is wrong."""


@dataclass(frozen=True, order=True)
class Problem:
    """One thing wrong in a spec: where it is, which field, and the sentence about it."""

    file: str
    line: int
    field: str
    text: str
    hint: str | None = None

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}: `{self.field}`: " if self.field else f"{self.file}:{self.line}: "
        return place + self.text


class SpecError(InputError):
    """Raised with every problem of a spec, so that a user repairs them in one go."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = sorted(problems, key=lambda problem: (problem.file, problem.line, problem.field, problem.text))
        hints = dict.fromkeys(problem.hint for problem in self.problems if problem.hint)
        super().__init__("\n".join(map(str, self.problems)), hint="\n      ".join(hints) or None)


class SourceError(InputError):
    """Raised when the model, its weights, labels, sample or calibration data cannot be had."""


class ArchiveError(InputError):
    """Raised when a MAR is damaged, is not one of Marina's, or was made for another machine."""


class ToolMissing(MarinaError):
    """Raised when a program that a step needs is not on this machine."""


class ClusterError(MarinaError):
    """Raised when a cluster cannot be reached, does not allow what is needed, or does not have it."""


class Refused(MarinaError):
    """Raised when the work was done and the answer is no."""

    exit_code = 1


class AgreementError(Refused):
    """Raised when a compiled artifact does not answer as the eager fp32 model does."""


def listed(values: Iterable[object]) -> str:
    """`a`, `b`, `c`: the allowed values as messages show them, sorted."""
    return ", ".join(f"`{value}`" for value in sorted(map(str, values)))


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that a misspelt one probably meant; None when nothing is close."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None
