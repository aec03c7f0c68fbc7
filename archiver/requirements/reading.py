"""Reads a requirements file as far as Marina must understand it: what pip would build, or take from a place that a lock
cannot name, is refused with what to write instead. Everything else is pip's."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidName, canonicalize_name

from marina.config.errors import SourceError, reason_of

_FILE_OPTION = re.compile(r"(-r|--requirement|-c|--constraint)[ =]*(.+)")
_OPTION = re.compile(r"(--?[a-z][a-z-]*)")
# Options of a whole file that choose where wheels come from, and which.
_ALLOWED = {
    *("-i", "--index-url", "--extra-index-url", "-f", "--find-links", "--no-index", "--trusted-host"),
    *("--pre", "--prefer-binary", "--only-binary", "--require-hashes", "--use-feature"),
}
_VERSION_CONTROL = re.compile(r"(?:^|@\s*)(?:git|hg|svn|bzr)\+")
# A path or URL, alone or after `name @`.
_PLACE = re.compile(r"(?:^|^[\w.\[\],-]+\s*@\s*)(?P<place>(?:\.{0,2}/|\.$|\.\.$|[a-z]+://|file:)\S*)")
_COMMENT = re.compile(r"(^|\s)#.*$")
# A line for Marina, which pip takes for a comment.
_OURS = re.compile(r"#\s*marina\b:?\s*(.*)", re.IGNORECASE)
_REPLACEMENT = re.compile(r"(\S+) instead of (\S+)")
REPLACE = "# marina: "
MAKE_A_WHEEL = "pip wheel --no-deps --wheel-dir wheels '{}', then write ./wheels/NAME.whl instead"


@dataclass(frozen=True)
class Line:
    """One requirement or option, and where it is written."""

    file: Path
    shown: str
    """The file as errors name it."""
    number: int
    text: str

    def __str__(self) -> str:
        return f"{self.shown}:{self.number}"

    @property
    def is_option(self) -> bool:
        """Whether it is an option of the whole file."""
        return self.text.startswith("-")

    @property
    def names_file(self) -> bool:
        """Whether it names another file of requirements or constraints."""
        return _FILE_OPTION.fullmatch(self.text) is not None

    @property
    def replacement(self) -> tuple[Requirement, str] | None:
        """What is installed instead of another library, and the name of that."""
        match = _REPLACEMENT.fullmatch(self.text.removeprefix(REPLACE))
        if not self.text.startswith(REPLACE) or match is None:
            return None
        try:
            return Requirement(match[1]), canonicalize_name(match[2], validate=True)
        except (InvalidRequirement, InvalidName):
            return None

    @property
    def wheel(self) -> Path | None:
        """The wheel on this machine that it names."""
        place = _place(self.text)
        if place is None or "://" in place.removeprefix("file://"):
            return None
        path = Path(place.removeprefix("file://").removeprefix("file:").partition("#")[0])
        return path if path.is_absolute() else self.file.parent / path

    @property
    def requirement(self) -> Requirement | None:
        """What it requires; None for an option, a path or a URL without a name."""
        bare = re.split(r"\s--hash\b|\s--[a-z]", self.text)[0].strip()
        if self.is_option or self.replacement or (_place(bare) is not None and "@" not in bare.partition("/")[0]):
            return None
        try:
            return Requirement(bare)
        except InvalidRequirement as err:
            reason = str(err).partition("\n")[0]
            text = f"{self}: got `{self.text}`, allowed: a requirement as pip takes it: {reason}"
            raise SourceError(text) from err


def read_requirements(file: Path, shown: str) -> list[Line]:
    """The lines of a requirements file, which errors call `shown`, and of those that it names by `-r` and `-c`."""
    lines: list[Line] = []
    _read(file, shown, lines, set())
    return lines


def _read(file: Path, shown: str, lines: list[Line], seen: set[Path]) -> None:
    if file.resolve() in seen:
        return
    seen.add(file.resolve())
    for line in _logical_lines(file, shown):
        lines.append(line)
        if match := _FILE_OPTION.fullmatch(line.text):
            name = match[2].strip().strip("'\"")
            if "://" in name:
                raise SourceError(f"{line}: got `{name}`, allowed: a file", hint="download it, and name the file")
            if not (file.parent / name).is_file():
                raise SourceError(f"{line}: no such file: `{file.parent / name}`")
            _read(file.parent / name, str(file.parent / name), lines, seen)
        else:
            _check(line)


def _logical_lines(file: Path, shown: str) -> Iterator[Line]:
    """The lines without comments, with those joined that end in a backslash."""
    try:
        physical = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as err:
        raise SourceError(f"{shown}: not a requirements file: {reason_of(err)}") from err
    start, joined = 1, ""
    for number, text in enumerate(physical, 1):
        start = start if joined else number
        if text.endswith("\\") and not text.lstrip().startswith("#"):
            joined += text[:-1] + " "
            continue
        if ours := _OURS.fullmatch(text.strip()):
            yield Line(file, shown, start, REPLACE + ours[1])
        elif whole := _COMMENT.sub("", joined + text).strip():
            yield Line(file, shown, start, whole)
        joined = ""


def _check(line: Line) -> None:
    """Refuses what no wheel can be pinned for."""
    text = line.text
    if text.startswith(REPLACE):
        if line.replacement is None:
            allowed = "a library, `instead of`, and the name of another"
            example = f"{REPLACE}opencv-python-headless instead of opencv-python"
            raise SourceError(f"{line}: got `{text}`, allowed: {allowed}", hint=f"write it like this: {example}")
        return
    if match := re.match(r"(?:-e|--editable)[ =]*(.*)", text):
        what = match[1].strip("'\" ")
        hint = MAKE_A_WHEEL.format(what)
        if "+" not in what:
            hint += "; modules beside the handler that it imports are packed without that"
        raise SourceError(f"{line}: got `{text}`, allowed: wheels, which a pod can install", hint=hint)
    if match := _OPTION.match(text):
        if match[1] not in _ALLOWED:
            text = f"{line}: got `{match[1]}`, allowed: options that say where wheels come from, such as `--index-url`"
            raise SourceError(text, hint="delete the line: nothing is built here, only wheels are installed")
        return
    if _VERSION_CONTROL.search(text):
        what = text.partition("@ ")[2].strip() or text
        sentence = "allowed: wheels: a branch or tag moves, and a pod builds nothing"
        raise SourceError(f"{line}: got `{text}`, {sentence}", hint=MAKE_A_WHEEL.format(what.partition(" ;")[0]))
    place = _place(text)
    if place is not None and not place.partition("#")[0].partition("?")[0].endswith(".whl"):
        raise SourceError(f"{line}: got `{place}`, allowed: a wheel", hint=MAKE_A_WHEEL.format(place))
    if line.wheel is not None and not line.wheel.is_file():
        raise SourceError(f"{line}: no such wheel: `{line.wheel}`")
    _ = line.requirement  # raises for what is none


def _place(text: str) -> str | None:
    match = _PLACE.match(text)
    return match["place"] if match else None
