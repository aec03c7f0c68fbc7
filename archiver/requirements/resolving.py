"""Resolves requirements for this Python and beside what a worker already has, and keeps the wheels.

The same requirements are resolved once on a machine: after that, no index is asked."""

import hashlib
import os
import shutil
import site
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from importlib import metadata
from pathlib import Path

from packaging.utils import canonicalize_name
from pydantic import ValidationError

from marina.archiver.rehearse import pod_distributions
from marina.archiver.requirements.asking_pip import Pip, describe
from marina.archiver.requirements.reading import Line, read_requirements
from marina.config.errors import SourceError
from marina.config.progress import Progress
from marina.config.record import write_text
from marina.config.requirements import (
    LOCK,
    VARIABLE,
    WHEELS,
    Requirements,
    file_digest,
    installed_requirements,
    requirements_cache,
)


@dataclass(frozen=True)
class Resolved:
    """Pinned wheels, and the folder in which they, and others, were kept."""

    requirements: Requirements
    wheels: Path

    def hand_over(self, out: Path) -> None:
        """Puts the wheels and their pins beside the MAR, from where they are installed."""
        (out / WHEELS).mkdir(parents=True)
        for wheel in self.requirements.wheels:
            try:
                os.link(self.wheels / wheel.file, out / WHEELS / wheel.file)
            except OSError:  # on another file system
                shutil.copyfile(self.wheels / wheel.file, out / WHEELS / wheel.file)
        write_text(out / LOCK, self.requirements.lock())


def clear_requirements(out: Path) -> None:
    """Removes from `out` what an earlier package had there."""
    shutil.rmtree(out / WHEELS, ignore_errors=True)
    (out / LOCK).unlink(missing_ok=True)


def resolve(file: Path, where: str, scratch: Path, progress: Progress, *, shown: str | None = None) -> Resolved | None:
    """Pins what a requirements file asks for beyond what a worker has; None if a worker has it all. `where` says in
    errors who names the file, and `shown` what it is called; without a cache, the wheels are kept in `scratch`."""
    lines = read_requirements(file, shown or str(file))
    worker = {name: metadata.version(name) for name in sorted(pod_distributions()) if not name.startswith("marina")}
    _check_pins(lines, worker)
    kept = requirements_cache() or scratch
    entry = kept / "resolved" / f"{_key(file, lines, worker)}.json"
    requirements = _kept(entry, kept / WHEELS)
    if requirements is not None:
        resolved = date.fromtimestamp(entry.stat().st_mtime)
        progress.say(f"  {file.name} as it was resolved on {resolved}; to do so again: rm {entry}")
    else:
        with progress.step(f"resolve {file.name}"), tempfile.TemporaryDirectory(dir=scratch) as work:
            requirements = Pip(file, where, worker, Path(work)).lock(lines, kept / WHEELS)
        write_text(entry, requirements.model_dump_json())
    return Resolved(requirements, kept / WHEELS) if requirements.wheels else None


@contextmanager
def importable(resolved: Resolved | None, scratch: Path) -> Iterator[None]:
    """Installs the wheels, and puts them where a worker has them, at the end of the path: here, and in the processes
    that are started here."""
    if resolved is None:
        yield
        return
    hint = "marina package SPEC"
    folder = str(installed_requirements(resolved.requirements, resolved.wheels, spare=scratch, hint=hint))
    before = sys.path[:]
    os.environ[VARIABLE] = folder
    site.addsitedir(folder)
    try:
        yield
    finally:
        del os.environ[VARIABLE]
        for added in set(sys.path) - set(before):
            if Path(added).is_relative_to(folder):
                sys.path.remove(added)


def _check_pins(lines: Sequence[Line], worker: dict[str, str]) -> None:
    """Refuses versions that contradict a worker's, all of them at once."""
    found, names = [], []
    for line in lines:
        wanted = line.requirement
        if wanted is None or (wanted.marker and not wanted.marker.evaluate()):
            continue
        name = canonicalize_name(wanted.name)
        if name in worker and not wanted.specifier.contains(worker[name], prereleases=True):
            found.append(f"{line}: got `{wanted}`, but a worker has {describe(name, worker)}")
            names.append(name)
    if found:
        hint = f"write `{names[0]}` without a version, or use a release of the library that works with these"
        raise SourceError("\n".join(found), hint=hint)


def _key(file: Path, lines: Sequence[Line], worker: dict[str, str]) -> str:
    """Names a result of resolving: by the lines, the wheels that they name, this Python, and a worker's versions."""
    digest = hashlib.sha256(f"{sys.version_info[:2]} {os.uname().machine} {sorted(worker.items())}".encode())
    for line in lines:
        digest.update(f"{os.path.relpath(line.file, file.parent)}:{line.text}\n".encode())
        if line.wheel is not None:
            digest.update(file_digest(line.wheel).encode())
    return digest.hexdigest()[:24]


def _kept(entry: Path, wheels: Path) -> Requirements | None:
    """An earlier result, if all its wheels are still there and undamaged."""
    try:
        requirements = Requirements.model_validate_json(entry.read_bytes())
        whole = all(file_digest(wheels / wheel.file) == wheel.sha256 for wheel in requirements.wheels)
    except (OSError, ValidationError):
        return None
    return requirements if whole else None
