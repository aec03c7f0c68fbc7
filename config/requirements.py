"""The libraries that a handler of your own brings: which wheels they are, and the folder that they are installed in.

They are resolved once, when the model is packaged. The record pins each wheel by its sha256, the wheels lie beside the
MAR, and an image has them installed in a layer of its own. What a worker has anyway is never among them."""

import hashlib
import json
import os
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path, PurePosixPath

from pydantic import BaseModel, ConfigDict

from marina.config.errors import ArchiveError, InputError

# The Python of every image that `marina image` builds.
IMAGE_PYTHON = (3, 11)
# Beside the MAR: the folder with the wheels, and their pins in pip's form.
WHEELS, LOCK = "wheels", "requirements.lock"
# Where an image has them installed, each set in a folder with the name of its digest.
IMAGE_FOLDER = Path("/opt/requirements")
# Tells a worker the folder that belongs on its path.
VARIABLE = "MARINA_REQUIREMENTS"


class Wheel(BaseModel):
    """One pinned wheel. It says nothing of the index that it came from: mirrors differ, the sha256 does not."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    version: str
    file: str
    sha256: str
    url: str | None = None
    """The URL that the requirements named it by, without a password; None for one from an index or a folder."""


class Requirements(BaseModel):
    """All wheels that a worker needs besides its own libraries, in the order of their names."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    python: str
    """The Python that they were resolved for, such as `3.11`."""
    wheels: tuple[Wheel, ...]

    @property
    def digest(self) -> str:
        """Names the folder that they are installed in: other wheels, or another Python, have another."""
        content = [self.python, *((wheel.file, wheel.sha256) for wheel in self.wheels)]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]

    def lock(self) -> str:
        """The wheels as a requirements file with hashes, which pip and `model.requirements` take."""
        lines = [f"# For Python {self.python}, as `marina package` resolved them.\n"]
        for wheel in self.wheels:
            pin = f"{wheel.name} @ {wheel.url}" if wheel.url else f"{wheel.name}=={wheel.version}"
            lines.append(f"{pin} --hash=sha256:{wheel.sha256}\n")
        return "".join(lines)


def requirements_cache() -> Path | None:
    """Where wheels are kept for the next packaging, and are installed for a local server; None if it is `off` or cannot
    be written."""
    chosen = os.environ.get("MARINA_CACHE")
    if chosen == "off":
        return None
    base = Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "marina"
    folder = base / "requirements"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK) else None


def installed_requirements(requirements: Requirements, wheels: Path, *, spare: Path, hint: str) -> Path:
    """The folder with the installed wheels: an image's layer, or else one in the cache, which is filled from `wheels`,
    the folder beside the MAR. Without a cache it is made in `spare`. Raises ArchiveError if a wheel is missing."""
    if requirements.python != running_python():
        got = f"Python {requirements.python}, but this is Python {running_python()}"
        text = f"the handler's libraries were resolved for {got}"
        raise ArchiveError(text, hint=hint)
    if (layer := IMAGE_FOLDER / requirements.digest).is_dir():
        return layer
    folder = (requirements_cache() or spare) / "installed" / requirements.digest
    if not folder.is_dir():
        install(requirements, wheels, folder, hint=hint)
    return folder


def install(requirements: Requirements, wheels: Path, folder: Path, *, hint: str) -> None:
    """Unpacks the wheels, whose hashes must be as recorded, into a folder, which appears only once it is complete."""
    for wheel in requirements.wheels:
        if not (wheels / wheel.file).is_file():
            named = ", ".join(f"`{one.name}` {one.version}" for one in requirements.wheels)
            raise ArchiveError(f"{wheels / wheel.file}: no such wheel; the handler needs {named}", hint=hint)
        if file_digest(wheels / wheel.file) != wheel.sha256:
            raise ArchiveError(f"{wheels / wheel.file}: not the wheel that was recorded", hint=hint)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as partial:
        site = Path(partial) / "site"
        site.mkdir()
        for wheel in requirements.wheels:
            _unpack(wheels / wheel.file, site)
        try:
            site.rename(folder)
        except OSError:  # another process was faster
            if not folder.is_dir():
                raise


def running_python() -> str:
    """The version of this Python, as wheels are made for it."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def file_digest(file: Path) -> str:
    """The sha256 of a file."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _unpack(wheel: Path, site: Path) -> None:
    """Unpacks a wheel as pip does (packaging.python.org, "Binary distribution format"), but for scripts and the records
    of an installation, which contain this machine's paths: nothing runs or uninstalls them in a pod."""
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            path = PurePosixPath(entry.filename)
            if path.parts and path.parts[0].endswith(".data"):
                if len(path.parts) < 3 or path.parts[1] not in ("purelib", "platlib"):
                    continue
                path = PurePosixPath(*path.parts[2:])
            if entry.is_dir() or (path.name == "RECORD" and path.parent.name.endswith(".dist-info")):
                continue
            if path.is_absolute() or ".." in path.parts:
                raise InputError(f"{wheel}: `{entry.filename}` lies outside its folder")
            target = site / path
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(entry) as source, target.open("wb") as copy:
                shutil.copyfileobj(source, copy, 1 << 20)
            # Some wheels bring programs, which zipfile would not make executable.
            target.chmod(0o755 if (entry.external_attr >> 16) & 0o100 else 0o644)
