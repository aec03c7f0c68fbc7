"""Where fetched files are kept: `~/.cache/marina/sources`, with a folder for each version of a source, and beside it
the list of its files, which is written when all of them are there."""

import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from marina.archiver.fetching.wanted import RULES
from marina.config.errors import InputError
from marina.config.record import write_json
from marina.config.remote import Remote

# Of a disk's room, what is left for others.
_ROOM = 1.1


@dataclass(frozen=True)
class Kept:
    """A version of a source in the cache, with all files that were wanted of it."""

    version: str
    folder: Path


def cache_folder() -> Path:
    """The folder of all fetched sources; XDG_CACHE_HOME moves it."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "marina" / "sources"


def version_folder(remote: Remote, version: str) -> Path:
    """The folder for a version of a source. Single files of it have one of their own, because everything in a model's
    folder is taken for a part of the model."""
    return _source_folder(remote) / _as_name(version + (f"#{remote.file}" if remote.file else ""))


def kept_versions(remote: Remote) -> list[Kept]:
    """The versions of a source that the cache has, the newest first."""
    lists = _source_folder(remote).glob("*.json")
    read = [_read(file) for file in sorted(lists, key=lambda file: file.stat().st_mtime, reverse=True)]
    return [kept for kept in read if kept and kept.folder == version_folder(remote, kept.version)]


def part_of(file: Path) -> Path:
    """Where a file is before all of it is there; the next run goes on with it."""
    return file.with_name(f".{file.name}.partial")


def keep(remote: Remote, version: str, names: Iterable[str]) -> None:
    """Notes that all files of a version are in the cache, and deletes others, which an older Marina wanted."""
    folder, names = version_folder(remote, version), sorted(names)
    for file in folder.rglob("*"):
        if not file.is_dir() and file.relative_to(folder).as_posix() not in names:
            file.unlink()
    write_json(_list_of(folder), {"version": version, "rules": RULES, "files": names})


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise InputError(
            f"{folder}: not writable: {err.strerror}",
            hint="a folder that you may write to: export XDG_CACHE_HOME=$HOME/cache",
        ) from err


def check_room(remote: Remote, sizes: Mapping[str, int | None], folder: Path) -> None:
    """Raises InputError if the disk has no room for files of these sizes."""
    needed, free = sum(size or 0 for size in sizes.values()), shutil.disk_usage(folder).free
    if needed * _ROOM > free:
        text = f"`{remote.text}`: {size_text(needed)} to fetch, but {folder} has room for {size_text(free)}"
        raise InputError(text, hint="a folder on a larger disk, such as: export XDG_CACHE_HOME=/mnt/cache")


def size_text(size: int) -> str:
    """The size in words: `340 kB`, `98.5 MB`."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size / 1e3:.0f} kB"


def _source_folder(remote: Remote) -> Path:
    server = _as_name(os.environ.get("MLFLOW_TRACKING_URI", "")) if remote.scheme == "mlflow" else ""
    return cache_folder() / remote.scheme / server / _as_name(remote.place)


def _list_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.json")


def _read(file: Path) -> Kept | None:
    folder = file.with_suffix("")
    with suppress(OSError, ValueError, KeyError, TypeError):
        data = json.loads(file.read_text(encoding="utf-8"))
        # A file in it may be a link into the cache of another program, which may have been emptied.
        if data["rules"] == RULES and all((folder / name).is_file() for name in data["files"]):
            return Kept(data["version"], folder)
    return None


def _as_name(text: str) -> str:
    """The text as the name of a folder: what a path may not have becomes `--`."""
    return re.sub(r"[^\w.+-]+", "--", text).strip("-")
