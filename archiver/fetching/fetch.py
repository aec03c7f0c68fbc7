"""Fetches the sources of a spec: the same steps for every kind of place."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from marina.archiver.fetching import hub, mlflow, oci, stores
from marina.archiver.fetching.cache import (
    Kept,
    check_room,
    keep,
    kept_versions,
    make_folder,
    part_of,
    size_text,
    version_folder,
)
from marina.archiver.fetching.found import ATTEMPTS, Found, Unreachable
from marina.config.errors import SourceError, listed, nearest
from marina.config.load import check_files
from marina.config.locks import locked
from marina.config.progress import Progress
from marina.config.record import Pin, file_sha256
from marina.config.remote import Remote, parse_remote
from marina.config.spec import Fetched, Spec
from marina.config.stores import STORES

_LOOKS: Mapping[str, Callable[[Remote, Progress, int], Found]] = {
    "hf": hub.look,
    "timm": hub.look,
    "mlflow": mlflow.look,
    "oci": oci.look,
    **dict.fromkeys(STORES, stores.look),
}


def look(remote: Remote, progress: Progress, *, attempts: int = ATTEMPTS) -> Found:
    """What its place says about a source: its version, and the files of that."""
    return _LOOKS[remote.scheme](remote, progress, attempts)


def fetch_sources(spec: Spec, progress: Progress) -> Spec:
    """The spec with its sources on this machine, each in the version that it has now. Raises SpecError if they do not
    fit the rest of the spec."""
    missing = [remote for remote in spec.remotes if spec.is_elsewhere(remote.text)]
    if not missing:
        return spec
    fetched = {remote.text: fetch_remote(remote, progress) for remote in missing}
    spec = spec.with_fetched({**spec.fetched, **fetched})
    check_files(spec)
    return spec


def fetch_remote(remote: Remote, progress: Progress) -> Fetched:
    """Fetches one source. What the cache has is not fetched again, and of a version that never changes nobody asks."""
    kept = kept_versions(remote)
    if remote.is_pinned and (same := next((entry for entry in kept if entry.version == remote.version), None)):
        return _fetched(remote, same.version, same.folder)
    try:
        found = look(remote, progress)
        folder = version_folder(remote, found.version)
        # Which files an archive holds is known only when it is unpacked, and then it is deleted.
        if not (found.unpack and Kept(found.version, folder) in kept):
            make_folder(folder)
            with locked(folder):
                names = _wanted(remote, found)
                _fetch_files(remote, found, names, folder, progress)
                keep(remote, found.version, found.unpack(folder) if found.unpack else names)
    except Unreachable as err:
        raise SourceError(err.message, hint=_without_network(remote, kept) or err.hint) from err
    return _fetched(remote, found.version, folder)


def _without_network(remote: Remote, kept: list[Kept]) -> str | None:
    """What to write to get the newest version that the cache has; None if it has none."""
    if not kept:
        return None
    folder = kept[0].folder
    here = str(folder / remote.one_file) if remote.one_file else f"hf:{folder}"
    return f"to use what the cache has, write `{remote.pinned_to(kept[0].version) or here}`"


def _fetch_files(remote: Remote, found: Found, names: list[str], folder: Path, progress: Progress) -> None:
    missing = {name: found.files[name] for name in names if not (folder / name).is_file()}
    if not missing:
        return
    check_room(remote, missing, folder)
    count = "1 file" if len(missing) == 1 else f"{len(missing)} files"

    def so_far() -> str:
        size = found.on_the_way()
        for place in (place for name in missing for place in (folder / name, part_of(folder / name))):
            # It may be moved into place at this moment.
            with suppress(OSError):
                size += place.stat().st_size
        return size_text(size)

    total = size_text(sum(size or 0 for size in missing.values()))
    with progress.step(f"fetch {remote.text}: {count}, {total}", so_far):
        for name in missing:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            found.get(name, part_of(folder / name))
            part_of(folder / name).replace(folder / name)


def _fetched(remote: Remote, version: str, folder: Path) -> Fetched:
    return Fetched(folder / remote.one_file if remote.one_file else folder, version)


def _wanted(remote: Remote, found: Found) -> list[str]:
    """The files to fetch: all that a model may need, or the one that is named."""
    if remote.file is None or found.unpack:
        return sorted(found.files)
    if remote.file not in found.files:
        close = nearest(remote.file, found.files)
        text = f"`{remote.text}`: it has no file `{remote.file}`, allowed: {listed(found.files)}"
        raise SourceError(text, hint=remote.text.replace(f"#{remote.file}", f"#{close}") if close else None)
    return [remote.file]


def pins_of(spec: Spec) -> dict[str, Pin]:
    """What the record says about the sources that were fetched."""
    remote = {text: got for text, got in sorted(spec.fetched.items()) if parse_remote(text)}
    return {text: Pin(version=got.version, files=_hashes(got.path)) for text, got in remote.items()}


def _hashes(path: Path) -> dict[str, str]:
    """The sha256 of a file, or of each file in a folder, by its path there."""
    if path.is_file():
        return {path.name: file_sha256(path)}
    files = sorted(file for file in path.rglob("*") if file.is_file())
    return {file.relative_to(path).as_posix(): file_sha256(file) for file in files}
