"""Every error Marina raises on purpose, with the exit code it ends in.

    MarinaError                    what went wrong, where, what was given, what is allowed
    ├── InputError           2     a file or an option is wrong
    │   ├── SpecError        2     one spec, all its problems at once
    │   ├── SourceError      2     the model, its weights or its data cannot be loaded
    │   └── ArchiveError     2     a MAR is damaged, not Marina's, or for another machine
    ├── ToolMissing          2     a program that this step needs is not installed
    ├── ClusterError         2     a cluster cannot be reached, or forbids or lacks what is needed
    └── Refused              1     the work was done and the answer is no
        └── AgreementError   1     an artifact does not answer as the eager model does

Messages have no full stop, put values in backticks and sort lists; `hint` says what to type."""

import difflib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_TERMINAL_CODES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(\x07|\x1b\\)?|\x1b[@-Z\\-_]?")


def printable(text: str) -> str:
    """The text, made safe for a terminal: escape sequences (colours, cursor movements) are removed, and other invisible
    characters are written as `\\x07` or `\\u202e`; line ends and tabs stay."""
    text = _TERMINAL_CODES.sub("", text)
    return "".join(char if char in "\n\t" or char.isprintable() else ascii(char)[1:-1] for char in text)


class MarinaError(Exception):
    """Raised for every problem that the user can do something about; anything else is a bug and keeps its traceback."""

    exit_code = 2

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        # Output of other programs and text from unknown files may be in a message: neither may control the terminal.
        self.message = printable(message)
        self.hint = None if hint is None else printable(hint)
        super().__init__(self.message)

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n\nhint: {self.hint}"


class InputError(MarinaError):
    """Raised when a file or an option is wrong."""


@dataclass(frozen=True, order=True)
class Problem:
    """One mistake in a spec: its file and line, the field, and the sentence about it."""

    file: str
    line: int
    field: str
    text: str
    hint: str | None = None

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}: `{self.field}`: " if self.field else f"{self.file}:{self.line}: "
        return place + self.text


class SpecError(InputError):
    """Raised with every problem of a spec, so that the user can fix them in one go."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = sorted(problems, key=lambda problem: (problem.file, problem.line, problem.field, problem.text))
        hints = dict.fromkeys(problem.hint for problem in self.problems if problem.hint)
        super().__init__("\n".join(map(str, self.problems)), hint="\n      ".join(hints) or None)


class SourceError(InputError):
    """Raised when the model, its weights, labels, sample or calibration data cannot be loaded."""


class ArchiveError(InputError):
    """Raised when a MAR is damaged, was not made by Marina, or was made for another machine."""


class ToolMissing(MarinaError):
    """Raised when a program that a step needs is not installed on this machine."""


class ClusterError(MarinaError):
    """Raised when a cluster cannot be reached, or forbids or lacks what is needed."""


class Refused(MarinaError):
    """Raised when the work was done and the answer is no."""

    exit_code = 1


class AgreementError(Refused):
    """Raised when a compiled artifact does not answer as the eager fp32 model does."""


def reason_of(err: BaseException) -> str:
    """Why something failed, as messages say it: of a system call only the reason, without its number and the path."""
    cause = getattr(err, "reason", None)
    if isinstance(cause, Exception):
        return reason_of(cause)
    return (err.strerror if isinstance(err, OSError) and err.strerror else str(err)) or type(err).__name__


@contextmanager
def as_input_error(text: str, *, hint: str | None = None) -> Iterator[None]:
    """Turns an error of the system, and one about a value, into an InputError of this text and its reason."""
    try:
        yield
    except (OSError, ValueError) as err:
        raise InputError(f"{text}: {reason_of(err)}", hint=hint) from err


def listed(values: Iterable[object]) -> str:
    """The values as messages show them, sorted: "`a`, `b`, `c`"."""
    return ", ".join(f"`{value}`" for value in sorted(map(str, values)))


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is closest to a misspelt one; None if none is close."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None
