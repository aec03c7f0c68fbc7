"""`python -m server.fetch FILE --sha256 HASH [--from URL | --from-environment] [--secret DIR]`: what an init container
runs before the server.

It downloads the MAR, or finds it where a volume has it, and lets nothing through that is not the package. What makes an
address a secret, its query, is printed nowhere.
"""

from __future__ import annotations

import argparse
import http.client
import os
import shutil
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from config.errors import ArchiveError, InputError, MarinaError
from config.record import file_sha256

if TYPE_CHECKING:
    from obstore.store import ClientConfig

# The store may be a moment behind, and a pod's network is not always there before its first container.
_ATTEMPTS, _PAUSE_S, _TIMEOUT_S = 5, 2.0, 30.0
_PIECE = 1 << 20
_SCHEMES = ("gs", "http", "https", "s3")
# Where a presigned address is: in a Secret, and so in the environment.
_VARIABLE = "MODEL_URL"


def fetch(file: Path, *, sha256: str, url: str | None, pause_s: float = _PAUSE_S) -> None:
    """Returns when the file is there and is the package; with a URL it is downloaded first, unless it is there."""
    if url and not (file.is_file() and file_sha256(file) == sha256):
        _download(url, file, pause_s)
    if not file.is_file():
        raise InputError(f"{file}: no such MAR in the volume", hint="kubernetes: {model: {path: PATH_IN_THE_VOLUME}}")
    got = file_sha256(file)
    if got != sha256:
        file_or_url = _printable(url) if url else str(file)
        if url:
            file.unlink()
        hint = "put the packaged MAR there, or render the manifests of the package that is there"
        raise ArchiveError(f"{file_or_url}: got sha256 {got}, allowed: {sha256}", hint=hint)


def _download(url: str, file: Path, pause_s: float) -> None:
    # Several pods may write into one cache.
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
    """Writes what a URL names; how much the store said it is."""
    if urlsplit(url).scheme in ("gs", "s3"):
        return _copy_object(url, file)
    with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer, file.open("wb") as stream:
        shutil.copyfileobj(answer, stream, _PIECE)
        length = answer.headers.get("Content-Length")
        return int(length) if length is not None else None


def _copy_object(url: str, file: Path) -> int:
    """The same of an object store. Who asks, it knows by the environment: keys, a file with them, or the identity that
    a cloud gives the pod."""
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    address = urlsplit(url)
    pause = f"{_TIMEOUT_S:g}s"
    # Whether a store is asked without TLS is for its address to say, which is in the environment too.
    limits: ClientConfig = {"connect_timeout": pause, "read_timeout": pause, "timeout": "3600s", "allow_http": True}
    with _as_os_error(BaseError):
        bucket = f"{address.scheme}://{address.netloc}"
        store = from_url(bucket, client_options=limits, retry_config={"max_retries": 0})
        answer = store.get(address.path.lstrip("/"))
        with file.open("wb") as stream:
            for piece in answer.stream(min_chunk_size=_PIECE):
                stream.write(piece)
        return int(answer.meta["size"])


@contextmanager
def _as_os_error(kind: type[Exception]) -> Iterator[None]:
    from obstore.exceptions import NotFoundError, PermissionDeniedError, UnauthenticatedError

    try:
        yield
    except FileNotFoundError as err:
        raise _PermanentError(str(err)) from err
    except (NotFoundError, PermissionDeniedError, UnauthenticatedError) as err:
        raise _PermanentError(str(err)) from err
    except kind as err:
        raise OSError(str(err)) from err


class _PermanentError(OSError):
    """What an object store will say again: there is no such object, or the client may not read it."""


def _is_permanent(err: Exception) -> bool:
    """What was asked for wrongly stays wrong."""
    if isinstance(err, urllib.error.HTTPError):
        return err.code < 500 and err.code not in (408, 429)
    return isinstance(err, _PermanentError)


def _printable(url: str) -> str:
    """An address as it may be printed."""
    address = urlsplit(url)
    return f"{address.scheme}://{address.netloc.rpartition('@')[2]}{address.path}" + ("?…" if address.query else "")


def _load_secret(folder: Path) -> None:
    """Takes the keys of a mounted Secret for variables; files among them, such as an account's, stay to be read."""
    for file in folder.iterdir():
        if file.is_file() and file.name.isidentifier():
            os.environ[file.name] = file.read_text(encoding="utf-8").strip()


def _from_environment() -> str:
    url = os.environ.get(_VARIABLE, "")
    if urlsplit(url).scheme not in _SCHEMES:
        text = f"`{_VARIABLE}`: " + (
            "not an address that begins with `https://`" if url else "missing in the Secret and in the environment"
        )
        raise InputError(text, hint=f"kubectl create secret generic NAME --from-literal={_VARIABLE}=URL")
    return url


def main() -> int:
    """0 when the package is there."""
    parser = argparse.ArgumentParser(prog="python -m server.fetch", description="the MAR of a package, verified")
    parser.add_argument("file", type=Path)
    parser.add_argument("--sha256", required=True)
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--from", dest="url")
    source.add_argument("--from-environment", action="store_true", help=f"the address in `{_VARIABLE}`")
    parser.add_argument("--secret", metavar="DIR", type=Path, help="a folder with variables, each a file")
    options = parser.parse_args()
    try:
        if options.secret:
            _load_secret(options.secret)
        url = _from_environment() if options.from_environment else options.url
        fetch(options.file, sha256=options.sha256, url=url)
    except MarinaError as err:
        print(f"error: {err}", file=sys.stderr)
        return err.exit_code
    print(f"{options.file}: sha256 {options.sha256}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
