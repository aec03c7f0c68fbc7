"""Requests to registries and tracking servers, and downloads that go on where they ended."""

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from marina.archiver.fetching.found import ATTEMPTS_TO_REACH, Busy

TIMEOUT_S = 30.0
_PIECE = 1 << 20


def open_url(url: str, headers: Mapping[str, str] | None = None) -> Any:
    """The answer to a request. Raises Busy for what is worth another try, and HTTPError for any other refusal."""
    request = urllib.request.Request(url)
    for name, value in (headers or {}).items():
        # A redirect leads to a store of others, which must not see the credentials.
        (request.add_unredirected_header if name == "Authorization" else request.add_header)(name, value)
    try:
        return urllib.request.urlopen(request, timeout=TIMEOUT_S)
    except urllib.error.HTTPError as err:
        if err.code in (408, 429) or err.code >= 500:
            told = err.headers.get("Retry-After", "")
            raise Busy(f"the server answered {err.code}", float(told) if told.isdecimal() else None) from err
        raise
    except (OSError, http.client.HTTPException) as err:
        raise Busy(f"not reachable: {getattr(err, 'reason', err)}", attempts=ATTEMPTS_TO_REACH) from err


def read_json(url: str, headers: Mapping[str, str] | None = None) -> Any:
    """The JSON that a server answers."""
    with open_url(url, headers) as answer:
        data = answer.read()
    try:
        return json.loads(data)
    except ValueError as err:
        raise Busy("the server's answer is not JSON", attempts=ATTEMPTS_TO_REACH) from err


def download(url: str, partial: Path, headers: Mapping[str, str], size: int | None) -> None:
    """Downloads a file, or the rest of it if a part is there."""
    start = partial.stat().st_size if partial.is_file() else 0
    if size is not None and 0 < size == start:
        return
    start = start if size is None or start < size else 0
    ranged = {**headers, "Range": f"bytes={start}-"} if start else headers
    # A connection may end, and what came is kept.
    with suppress(http.client.IncompleteRead, ConnectionError, TimeoutError), open_url(url, ranged) as answer:
        with_rest = start and answer.status == 206
        with partial.open("ab" if with_rest else "wb") as stream:
            while piece := answer.read(_PIECE):
                stream.write(piece)
    if size is not None and partial.stat().st_size != size:
        raise Busy(f"got {partial.stat().st_size} of {size} bytes", after_s=1)


def said(err: urllib.error.HTTPError) -> str:
    """What a server said with a refusal, on one line."""
    with suppress(OSError, ValueError):
        text = err.read(10_000).decode(errors="replace")
        with suppress(ValueError, LookupError, TypeError):
            data = json.loads(text)
            text = data["errors"][0]["message"] if "errors" in data else data["message"]
        return f"{err.code}: {text.strip().splitlines()[0][:200]}" if text.strip() else str(err.code)
    return str(err.code)
