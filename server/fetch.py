"""An init container runs it before the server starts:
`python -m marina.server.fetch FILE --sha256 HASH [--from URL | --from-environment] [--secret DIR] [--signed DIR]`.

It downloads the MAR, or finds it in a mounted volume, and fails unless its sha256 is the package's. The query of a URL
may be a secret (a presigned signature), so it is never printed."""

from __future__ import annotations

import argparse
import http.client
import os
import re
import shutil
import socket
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

from marina.config.errors import ArchiveError, InputError, MarinaError
from marina.config.record import file_sha256
from marina.config.stores import STORES, open_store

# The store may lag behind an upload, and a pod's network is not always up before its first container starts.
_ATTEMPTS, _PAUSE_S, _TIMEOUT_S = 5, 2.0, 30.0
_PIECE = 1 << 20
# Spaces and letters beyond ASCII must be written as `%20`: Python's client refuses them, and repeats the query in its
# message.
_ADDRESS = re.compile(r"https?://[!-~]+|(az|gs|s3)://[^/?#\s][^\r\n]*")
# Holds a presigned URL: it comes from a Secret, through the environment.
_VARIABLE = "MODEL_URL"


def fetch(file: Path, *, sha256: str, url: str | None, pause_s: float = _PAUSE_S) -> None:
    """Returns once `file` exists and has this hash. With a URL it is downloaded first, unless it already does."""
    got = file_sha256(file) if file.is_file() else None
    if url and got != sha256:
        _download(url, file, pause_s)
        got = file_sha256(file)
    if got is None:
        raise InputError(f"{file}: no such MAR in the volume", hint="kubernetes: {model: {path: PATH_IN_THE_VOLUME}}")
    if got != sha256:
        file_or_url = _printable(url) if url else str(file)
        if url:
            file.unlink()
        hint = "put the packaged MAR there, or render the manifests of the package that is there"
        raise ArchiveError(f"{file_or_url}: got sha256 {got}, allowed: {sha256}", hint=hint)


def _download(url: str, file: Path, pause_s: float) -> None:
    # Several pods may write into the same cache, so each has a partial file of its own.
    partial = file.with_name(f"{file.name}.{socket.gethostname()}.{os.getpid()}.partial")
    try:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                size = _copy(url, partial)
                if size is not None and partial.stat().st_size != size:
                    raise http.client.IncompleteRead(b"", size - partial.stat().st_size)
                partial.replace(file)
                return
            except (OSError, http.client.HTTPException) as err:
                reason = str(err).replace(url, _printable(url)).splitlines()[0]
                if _is_permanent(err) or attempt == _ATTEMPTS:
                    hint = "kubernetes: {model: {url: URL, secret: NAME}}"
                    raise InputError(f"{_printable(url)}: not downloaded: {reason}", hint=hint) from None
                print(f"{_printable(url)}: {reason}; attempt {attempt} of {_ATTEMPTS}", file=sys.stderr, flush=True)
                time.sleep(pause_s)
    finally:
        partial.unlink(missing_ok=True)


def _copy(url: str, file: Path) -> int | None:
    """Downloads a URL into a file; returns the size that the server declared, if it did."""
    if urlsplit(url).scheme in STORES:
        return _copy_object(url, file)
    with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer, file.open("wb") as stream:
        shutil.copyfileobj(answer, stream, _PIECE)
        length = answer.headers.get("Content-Length")
        return int(length) if length is not None else None


def _copy_object(url: str, file: Path) -> int:
    """Downloads from an object store; returns the object's size."""
    from obstore.exceptions import BaseError, NotFoundError, PermissionDeniedError, UnauthenticatedError

    try:
        store, path = open_store(url, _TIMEOUT_S)
        answer = store.get(path)
        with file.open("wb") as stream:
            for piece in answer.stream(min_chunk_size=_PIECE):
                stream.write(piece)
        return int(answer.meta["size"])
    except (FileNotFoundError, NotFoundError, PermissionDeniedError, UnauthenticatedError) as err:
        raise _PermanentError(str(err)) from err
    except BaseError as err:
        raise OSError(str(err)) from err


class _PermanentError(OSError):
    """Not worth a retry: the object does not exist, or the client may not read it."""


def _is_permanent(err: Exception) -> bool:
    """True if a retry would fail in the same way."""
    if isinstance(err, urllib.error.HTTPError):
        return err.code < 500 and err.code not in (408, 429)
    return isinstance(err, _PermanentError)


def _printable(url: str) -> str:
    """The URL without its credentials and its query."""
    address = urlsplit(url)
    return f"{address.scheme}://{address.netloc.rpartition('@')[2]}{address.path}" + ("?…" if address.query else "")


def _load_secret(folder: Path) -> None:
    """Sets an environment variable for each key of a mounted Secret whose name can be one. Other files, such as an
    account's key file, are left to be read from the folder."""
    try:
        for file in folder.iterdir():
            if file.is_file() and file.name.isidentifier():
                os.environ[file.name] = file.read_text(encoding="utf-8").strip()
    except OSError as err:
        raise InputError(f"`--secret`: got `{folder}`: {err.strerror}") from err
    except ValueError as err:
        raise InputError(f"`--secret`: `{file}` is not text") from err


def _checked(source: str, url: str) -> str:
    """The URL; InputError, which does not repeat it, if nothing can be downloaded from it."""
    try:
        # `port` is parsed only when it is read.
        if _ADDRESS.fullmatch(url) and urlsplit(url).port != 0:
            return url
    except ValueError:
        pass
    text = "not an address that begins with `https://`, `http://`, `s3://`, `gs://` or `az://`, without spaces"
    hint = f"kubectl create secret generic NAME --from-literal={_VARIABLE}=URL" if source == _VARIABLE else None
    raise InputError(f"`{source}`: {text if url else 'missing in the Secret and in the environment'}", hint=hint)


def main() -> int:
    """Returns 0 once the package is in place."""
    parser = argparse.ArgumentParser(prog="python -m marina.server.fetch", description="Gets a MAR and verifies it.")
    parser.add_argument("file", metavar="FILE", type=Path, help="the MAR, which must exist unless it is downloaded")
    parser.add_argument("--sha256", metavar="SHA256", required=True, help="the checksum that it must have")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--from", metavar="URL", dest="url", help="address of the MAR")
    source.add_argument("--from-environment", action="store_true", help=f"download from the URL in `{_VARIABLE}`")
    text = "a folder with the spec and the signatures that its `serving.verify` demands"
    parser.add_argument("--signed", metavar="DIR", type=Path, help=text)
    parser.add_argument("--secret", metavar="DIR", type=Path, help="a folder with one file per environment variable")
    options = parser.parse_args()
    try:
        if options.secret:
            _load_secret(options.secret)
        url = options.url and _checked("--from", options.url)
        if options.from_environment:
            url = _checked(_VARIABLE, os.environ.get(_VARIABLE, "").strip())
        fetch(options.file, sha256=options.sha256, url=url)
        if options.signed:
            # They take a third of a second to import.
            from marina.config.load import load_spec
            from marina.config.signatures import check_signatures

            check_signatures(load_spec(options.signed / "spec.yaml", files=False), options.signed, options.sha256)
    except MarinaError as err:
        print(f"error: {err}", file=sys.stderr)
        return err.exit_code
    print(f"{options.file}: sha256 {options.sha256}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
