"""Models on Hugging Face's hub, through its own client: its cache, its token, its mirrors (`HF_ENDPOINT`)."""

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from marina.archiver.fetching.found import ATTEMPTS_TO_REACH, Busy, Found, Unreachable, retried
from marina.archiver.fetching.wanted import wanted_files
from marina.config.errors import InputError, SourceError, ToolMissing
from marina.config.progress import Progress
from marina.config.remote import Remote

_TIMEOUT_S = 10.0
# The client itself tries each request of a download several times.
_DOWNLOADS = 2


def look(remote: Remote, progress: Progress, attempts: int) -> Found:
    """Asks the hub which commit a model's revision is, and which files it has."""
    hub = _client()
    repository = _repository(remote)
    api = hub.HfApi()

    def ask() -> Any:
        with _named_errors(remote, repository):
            return api.model_info(repository, revision=remote.version, files_metadata=True, timeout=_TIMEOUT_S)

    info = retried(remote.text, ask, progress, attempts=attempts)
    sizes = {sibling.rfilename: sibling.size for sibling in info.siblings or ()}
    wanted = sizes if remote.file else wanted_files(sizes)

    from huggingface_hub.utils.tqdm import tqdm

    on_the_way = 0

    class Counted(tqdm):
        """The client's progress bar, which is not shown."""

        def update(self, n: float | None = 1) -> bool | None:
            nonlocal on_the_way
            on_the_way += int(n or 0)
            return super().update(n)  # type: ignore[no-any-return]

    def get(name: str, file: Path) -> None:
        nonlocal on_the_way

        def download() -> str:
            with _named_errors(remote, repository):
                path: str = hub.hf_hub_download(repository, name, revision=info.sha, tqdm_class=Counted)
                return path

        file.unlink(missing_ok=True)
        file.symlink_to(os.path.realpath(retried(remote.text, download, progress, attempts=_DOWNLOADS)))
        on_the_way = 0

    return Found(info.sha, {name: sizes[name] for name in wanted}, get, lambda: on_the_way)


def _repository(remote: Remote) -> str:
    if remote.scheme == "hf":
        return remote.place
    if "." in remote.place:
        return f"timm/{remote.place}"
    try:
        import timm
    except ModuleNotFoundError as err:
        text = f"`{remote.text}`: which weights `{remote.place}` has says `timm`, which is not installed"
        raise ToolMissing(text, hint="pip install timm, or write the tag too, such as timm:resnet50.a1_in1k") from err
    cfg = timm.models.get_pretrained_cfg(remote.place)
    if cfg is None or not cfg.tag:
        text = f"`{remote.text}`: timm {timm.__version__} has no weights for `{remote.place}`"
        raise SourceError(text, hint=f"python -c \"import timm; print(timm.list_pretrained('{remote.place}*'))\"")
    return f"timm/{remote.place}.{cfg.tag}"


def _client() -> Any:
    try:
        import huggingface_hub
        from huggingface_hub.utils.logging import set_verbosity
        from huggingface_hub.utils.tqdm import disable_progress_bars
    except ModuleNotFoundError as err:
        text = "a model of Hugging Face's hub needs `huggingface_hub`, which is not installed"
        raise ToolMissing(text, hint="pip install huggingface_hub") from err
    # Whoever waits sees the step.
    disable_progress_bars()
    set_verbosity(logging.ERROR)
    return huggingface_hub


@contextmanager
def _named_errors(remote: Remote, repository: str) -> Iterator[None]:
    """Turns the client's errors into ours: Busy for what is worth another try."""
    import httpx2
    from huggingface_hub import constants, errors

    page = f"{constants.ENDPOINT}/{repository}"
    where = f"`{remote.text}`"
    try:
        yield
    except errors.GatedRepoError as err:
        text = f"{where}: its owner has to grant access, and this token has none"
        raise SourceError(text, hint=f"ask for it at {page}, then `hf auth login`, or set HF_TOKEN") from err
    except errors.RevisionNotFoundError as err:
        raise SourceError(f"{where}: the hub has no revision `{remote.version}` of it", hint=f"{page}/tree") from err
    except errors.EntryNotFoundError as err:
        # Of a file that could not be looked up, this class says only that it is not in the cache.
        if isinstance(err, errors.LocalEntryNotFoundError):
            raise Busy(f"not reachable: {_first_line(err.__cause__ or err)}") from err
        raise SourceError(f"{where}: the hub has no file `{remote.file}` in it", hint=f"{page}/tree") from err
    except errors.HfHubHTTPError as err:
        status = err.response.status_code
        if status in (408, 429) or status >= 500:
            raise Busy(f"the hub answered {status}", _asked_pause_s(err.response.headers)) from err
        if status in (401, 403, 404):
            # One answer for both, so that nobody learns which private models exist.
            text = f"{where}: the hub has no `{repository}`, or shows it only to those who may read it"
            raise SourceError(text, hint=f"compare the name with {page}; if it is private, `hf auth login`") from err
        raise SourceError(f"{where}: the hub answered {status}: {_first_line(err)}", hint=page) from err
    except errors.OfflineModeIsEnabled as err:
        raise Unreachable(f"{where}: HF_HUB_OFFLINE is set") from err
    except errors.HFValidationError as err:
        raise InputError(f"{where}: {_first_line(err)}") from err
    except (httpx2.TimeoutException, httpx2.NetworkError, httpx2.RemoteProtocolError) as err:
        raise Busy(f"{constants.ENDPOINT} is not reachable: {_first_line(err)}", attempts=ATTEMPTS_TO_REACH) from err


def _asked_pause_s(headers: Any) -> float | None:
    """How long the hub asks to wait, s; it says so in either of two headers."""
    if (told := headers.get("Retry-After", "")).isdecimal():
        return float(told)
    until_reset = re.search(r"\bt=(\d+)", headers.get("RateLimit", ""))
    return float(until_reset[1]) if until_reset else None


def _first_line(err: BaseException) -> str:
    return (str(err).strip() or type(err).__name__).splitlines()[0]
