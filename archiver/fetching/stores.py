"""Files and folders in `s3://`, `gs://` and `az://` stores."""

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from marina.archiver.fetching.found import ATTEMPTS, ATTEMPTS_TO_REACH, Busy, Found, retried
from marina.archiver.fetching.wanted import wanted_files
from marina.config.errors import SourceError, ToolMissing
from marina.config.progress import Progress
from marina.config.remote import Remote
from marina.config.stores import open_store

_TIMEOUT_S = 30.0
_PIECE = 1 << 20
# What the client says of an answer that it has no class of errors for.
_STATUS = re.compile(r"status(?: code)?: (\d{3})")
_VARIABLES = {
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
    "gs": "GOOGLE_SERVICE_ACCOUNT=FILE",
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION",
}


def look(remote: Remote, progress: Progress, attempts: int) -> Found:
    """Asks a store which objects there are; the version is made of what it calls their contents (ETag)."""
    try:
        with _named_errors(remote):
            store, path = open_store(f"{remote.scheme}://{remote.place}", _TIMEOUT_S)
    except Busy as err:
        # Nobody was asked yet.
        text = f"`{remote.text}`: the environment does not say whose store it is"
        raise SourceError(text, hint=f"set {_VARIABLES[remote.scheme]}") from err
    path, is_object = path.rstrip("/"), not remote.is_folder and remote.file is None

    def ask() -> dict[str, Any]:
        with _named_errors(remote):
            if is_object:
                return {Path(path).name: store.head(path)}
            listed = [entry for page in store.list(f"{path}/") for entry in page]
            return {entry["path"].removeprefix(f"{path}/"): entry for entry in listed}

    objects = retried(remote.text, ask, progress, attempts=attempts)
    if not objects:
        text = f"`{remote.text}`: nothing is there"
        raise SourceError(text, hint=f"compare it with what the bucket has; credentials: {_VARIABLES[remote.scheme]}")
    names = wanted_files(objects) if remote.is_folder else sorted(objects)
    place = {name: path if is_object else f"{path}/{name}" for name in objects}

    def get(name: str, file: Path) -> None:
        def download() -> None:
            with _named_errors(remote):
                _download(store, place[name], objects[name], file)

        retried(remote.text, download, progress)

    digest = hashlib.sha256()
    # Of one file that is named, only that one: others in the folder may change.
    for name in [remote.file] if remote.file in objects else names:
        entry = objects[name]
        digest.update(f"{name} {entry['size']} {_etag(entry) or entry['last_modified']}\n".encode())
    return Found(digest.hexdigest()[:40], {name: objects[name]["size"] for name in names}, get)


def _etag(entry: Any) -> str:
    """What the store calls the contents of an object; some quote it in one answer and not in the other."""
    return (entry["e_tag"] or "").strip('"')


def _download(store: Any, path: str, entry: Any, partial: Path) -> None:
    """Downloads an object, or the rest of it if a part is there; only if it is still the one that was listed."""
    start = partial.stat().st_size if partial.is_file() else 0
    start = start if start < entry["size"] else 0
    try:
        answer = store.get(path, options={"range": {"offset": start}} if start else {})
    except Exception as err:
        if "NotPartial" in repr(err) + str(err):
            # A server that sends only whole objects.
            partial.unlink()
            raise Busy("it sends only whole objects", after_s=0) from err
        raise
    if _etag(answer.meta) != _etag(entry):
        raise SourceError(f"`{path}`: it changed while it was fetched", hint="try again")
    with partial.open("ab" if start else "wb") as stream:
        for piece in answer.stream(min_chunk_size=_PIECE):
            stream.write(piece)
    if partial.stat().st_size != entry["size"]:
        raise Busy(f"got {partial.stat().st_size} of {entry['size']} bytes")


@contextmanager
def _named_errors(remote: Remote) -> Iterator[None]:
    """Turns the client's errors into ours: Busy for what is worth another try."""
    try:
        from obstore import exceptions
    except ModuleNotFoundError as err:
        raise ToolMissing(
            f"`{remote.text}` needs `obstore`, which is not installed", hint="pip install obstore"
        ) from err
    where, hint = f"`{remote.text}`", f"credentials come from {_VARIABLES[remote.scheme]}"
    try:
        yield
    except (FileNotFoundError, exceptions.NotFoundError) as err:
        raise SourceError(f"{where}: not there", hint=f"compare it with what the bucket has; {hint}") from err
    except (PermissionError, exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as err:
        raise SourceError(f"{where}: this machine may not read it", hint=hint) from err
    except exceptions.BaseError as err:
        status = _STATUS.search(str(err))
        if status and status[1] in ("401", "403"):
            raise SourceError(f"{where}: this machine may not read it", hint=hint) from err
        # Its first line may show an address, with a signature in the query.
        reason = f"the store answered {status[1]}" if status else "the store is not reachable"
        raise Busy(reason, attempts=ATTEMPTS if status else ATTEMPTS_TO_REACH) from err
