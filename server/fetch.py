"""`python -m server.fetch FILE --sha256 HASH [--from URL]`: what an init container runs before the server.

It downloads the MAR, or finds it where a volume has it, and lets nothing through that is not the package.
"""

from __future__ import annotations

import argparse
import http.client
import shutil
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from config.errors import ArchiveError, InputError, MarinaError
from config.record import file_sha256

# The store may be a moment behind, and a pod's network is not always there before its first container.
_ATTEMPTS, _PAUSE_S, _TIMEOUT_S = 5, 2.0, 30.0
_PIECE = 1 << 20


def fetch(file: Path, *, sha256: str, url: str | None, pause_s: float = _PAUSE_S) -> None:
    """Returns when the file is there and is the package; with a URL it is downloaded first, unless it is there."""
    if url and not (file.is_file() and file_sha256(file) == sha256):
        _download(url, file, pause_s)
    if not file.is_file():
        raise InputError(f"{file}: no such MAR in the volume", hint="kubernetes: {model: {path: PATH_IN_THE_VOLUME}}")
    got = file_sha256(file)
    if got != sha256:
        file_or_url = url or str(file)
        if url:
            file.unlink()
        hint = "put the packaged MAR there, or render the manifests of the package that is there"
        raise ArchiveError(f"{file_or_url}: got sha256 {got}, allowed: {sha256}", hint=hint)


def _download(url: str, file: Path, pause_s: float) -> None:
    partial = file.with_name(f"{file.name}.partial")
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer, partial.open("wb") as stream:
                shutil.copyfileobj(answer, stream, _PIECE)
                expected = answer.headers.get("Content-Length")
            if expected is not None and partial.stat().st_size != int(expected):
                raise http.client.IncompleteRead(b"", int(expected) - partial.stat().st_size)
            partial.replace(file)
            return
        except (OSError, http.client.HTTPException) as err:
            # What was asked for wrongly stays wrong.
            final = isinstance(err, urllib.error.HTTPError) and err.code < 500 and err.code not in (408, 429)
            if final or attempt == _ATTEMPTS:
                raise InputError(f"{url}: not downloaded: {err}", hint="kubernetes: {model: {url: URL}}") from err
            print(f"{url}: {err}; attempt {attempt} of {_ATTEMPTS}", file=sys.stderr, flush=True)
            time.sleep(pause_s)


def main() -> int:
    """0 when the package is there."""
    parser = argparse.ArgumentParser(prog="python -m server.fetch", description="the MAR of a package, verified")
    parser.add_argument("file", type=Path)
    parser.add_argument("--sha256", required=True)
    parser.add_argument("--from", dest="url")
    options = parser.parse_args()
    try:
        fetch(options.file, sha256=options.sha256, url=options.url)
    except MarinaError as err:
        print(f"error: {err}", file=sys.stderr)
        return err.exit_code
    print(f"{options.file}: sha256 {options.sha256}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
