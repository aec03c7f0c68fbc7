"""The folder that an image is built from: a clone of the repository, or what Marina's wheel has of it."""

import shutil
from importlib import metadata
from pathlib import Path

from marina.config.distribution import DISTRIBUTION
from marina.config.errors import InputError

# Not resolved: in a clone this package is a link in `marina`, and the folder around `marina` is meant.
_ROOT = Path(__file__).parents[3]
_DOCKERFILE = Path("docker/Dockerfile")
_PACKAGES = ("config", "loadtest", "server")


def find_clone() -> Path | None:
    """The repository that this code belongs to; None if it was installed from a wheel."""
    return _ROOT if (_ROOT / _DOCKERFILE).is_file() else None


def build_context(place: Path) -> Path:
    """The clone; if there is none, `place`, which then holds the same files."""
    if clone := find_clone():
        return clone
    shutil.copytree(_installed_files(), place)
    ours = _ROOT / "marina"
    shutil.copytree(ours, place / "marina", ignore=lambda folder, _: _PACKAGES if Path(folder) == ours else ())
    for package in _PACKAGES:
        shutil.copytree(ours / package, place / package)
    return place


def _installed_files() -> Path:
    """The folder of the wheel's files that are no Python packages."""
    shared = Path("share/marina")
    recorded = [
        Path(str(file.locate())) for file in metadata.files(DISTRIBUTION) or () if file.name == _DOCKERFILE.name
    ]
    # `pip install --target` records another place than it installs these files in.
    for folder in (*(file.parents[1] for file in recorded), _ROOT / shared):
        if (folder / _DOCKERFILE).is_file():
            return folder
    raise InputError(
        f"{_ROOT}: this Marina was installed without `{shared / _DOCKERFILE}`", hint="install its wheel with pip"
    )
