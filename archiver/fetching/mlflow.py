"""Models in MLflow's registry, through the REST API of a tracking server."""

import base64
import os
import tempfile
import urllib.error
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import yaml

from marina.archiver.fetching import stores
from marina.archiver.fetching.found import ATTEMPTS, Found, retried
from marina.archiver.fetching.http import download, read_json, said
from marina.archiver.fetching.wanted import wanted_files
from marina.config.errors import InputError, SourceError, listed
from marina.config.progress import Progress
from marina.config.remote import Remote, parse_remote
from marina.config.stores import STORES

_SERVER = "MLFLOW_TRACKING_URI"
_MODEL = "MLmodel"
Sizes = Mapping[str, int | None]
Get = Callable[[str, Path], None]
# Where the flavours keep a model as `transformers` and `sentence-transformers` save it.
_COMPONENTS = ("tokenizer", "feature_extractor", "image_processor", "processor")


class Server:
    """A tracking server, as MLflow's own variables name it."""

    def __init__(self, remote: Remote) -> None:
        self.url = os.environ.get(_SERVER, "").rstrip("/")
        if urlsplit(self.url).scheme not in ("http", "https"):
            text = (
                f"`{remote.text}`: `{_SERVER}`: got `{self.url}`, allowed: the `http://` address of a tracking server"
            )
            raise InputError(text, hint=f"mlflow server --port 5000, then {_SERVER}=http://127.0.0.1:5000 marina …")
        self.headers: dict[str, str] = {}
        user, password = (os.environ.get(f"MLFLOW_TRACKING_{name}", "") for name in ("USERNAME", "PASSWORD"))
        if token := os.environ.get("MLFLOW_TRACKING_TOKEN"):
            self.headers["Authorization"] = f"Bearer {token}"
        elif user:
            self.headers["Authorization"] = f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"

    def ask(self, call: str, **query: str) -> Any:
        return read_json(f"{self.url}/api/2.0/{call}?{urlencode(query)}", self.headers)

    def version_of(self, remote: Remote) -> str:
        """The number of a model's version, or the id of a run."""
        kind, _, name = remote.place.partition(":/")
        if kind == "runs":
            return name.partition("/")[0]
        if remote.version is None or remote.version.isdecimal():
            return remote.version or ""
        found = self.ask("mlflow/registered-models/alias", name=name, alias=remote.version)
        return str(found["model_version"]["version"])

    def place_of(self, remote: Remote, version: str) -> str:
        """The address of the files."""
        kind, _, name = remote.place.partition(":/")
        if kind == "runs":
            place = remote.place
        else:
            place = self.ask("mlflow/model-versions/get-download-uri", name=name, version=version)["artifact_uri"]
        if place.startswith("models:/m-"):
            model = self.ask(f"mlflow/logged-models/{place.removeprefix('models:/')}")["model"]
            return str(model["info"]["artifact_uri"])
        if place.startswith("runs:/"):
            run, _, path = place.removeprefix("runs:/").partition("/")
            return f"{self.ask('mlflow/runs/get', run_id=run)['run']['info']['artifact_uri']}/{path}"
        return str(place)

    def files_in(self, folder: str) -> Sizes:
        """The files that the server hands on from its own store, by their path in the folder."""
        files: dict[str, int | None] = {}
        folders = [""]
        while folders:
            at = folders.pop()
            for entry in self.ask("mlflow-artifacts/artifacts", path=f"{folder}/{at}".rstrip("/")).get("files", ()):
                path = f"{at}/{entry['path']}".lstrip("/")
                if entry.get("is_dir"):
                    folders.append(path)
                else:
                    files[path] = int(entry["file_size"]) if "file_size" in entry else None
        return files

    def address(self, path: str) -> str:
        return f"{self.url}/api/2.0/mlflow-artifacts/artifacts/{quote(path)}"


def look(remote: Remote, progress: Progress, attempts: int) -> Found:
    """Asks a tracking server which version an alias is, and which files that has."""
    server = Server(remote)

    def ask() -> tuple[str, str]:
        with _named_errors(remote, server):
            version = server.version_of(remote)
            return version, server.place_of(remote, version)

    version, place = retried(remote.text, ask, progress, attempts=attempts)
    kept = _in_store if urlsplit(place).scheme in STORES else _on_server
    files, get = kept(remote, server, place, progress)
    names = {name: name for name in files} if remote.file else _of_flavour(remote, files, get)
    sizes = {name: files[path] for name, path in names.items()}
    return Found(version, sizes, lambda name, file: get(names[name], file))


def _in_store(remote: Remote, _: Server, place: str, progress: Progress) -> tuple[Sizes, Get]:
    """The files of a version in a store that this machine reads itself."""
    # With a file that is named, the store lists all others, too.
    inner = parse_remote(f"{place}#{remote.file or _MODEL}")
    assert inner
    found = stores.look(inner, progress, ATTEMPTS)
    return found.files, found.get


def _on_server(remote: Remote, server: Server, place: str, progress: Progress) -> tuple[Sizes, Get]:
    """The files of a version that the server hands on from its own store."""
    at = urlsplit(place)
    if at.scheme != "mlflow-artifacts":
        text = f"`{remote.text}`: its files are in `{place}`, which only MLflow itself reads"
        raise SourceError(text, hint=f"mlflow artifacts download -u {remote.text.removeprefix('mlflow:')} -d ./model")
    folder = at.path.strip("/")

    def list_files() -> Sizes:
        with _named_errors(remote, server):
            return server.files_in(folder)

    files = retried(remote.text, list_files, progress)

    def get(path: str, file: Path) -> None:
        def fetch() -> None:
            with _named_errors(remote, server):
                download(server.address(f"{folder}/{path}"), file, server.headers, files[path])

        retried(remote.text, fetch, progress)

    return files, get


def _of_flavour(remote: Remote, files: Sizes, get: Get) -> dict[str, str]:
    """The files of a model's folder as `transformers` saves it, each with its path among those of the flavour."""
    described = None
    if _MODEL in files:
        with tempfile.TemporaryDirectory(prefix="marina-") as scratch:
            get(_MODEL, Path(scratch) / _MODEL)
            described = yaml.safe_load((Path(scratch) / _MODEL).read_bytes())
    flavours = described.get("flavors", {}) if isinstance(described, dict) else {}
    saved = flavours.get("transformers") or flavours.get("sentence_transformers")
    if saved is None:
        text = f"`{remote.text}`: which of its files is meant? its flavours are {listed(flavours) or 'not said'}"
        data = next((name for name in sorted(files) if name.startswith("data/model.")), "FILE")
        raise SourceError(text, hint=f"{remote.text}#{data}")
    folders = [saved.get("model_binary", "model"), "model.sentence_transformer"]
    folders += [f"components/{name}" for name in _COMPONENTS]
    names: dict[str, str] = {}
    for folder in folders:
        inside = {path.removeprefix(f"{folder}/"): path for path in sorted(files) if path.startswith(f"{folder}/")}
        names |= {name: path for name, path in inside.items() if name not in names}
    return {name: names[name] for name in wanted_files(names)}


@contextmanager
def _named_errors(remote: Remote, server: Server) -> Iterator[None]:
    """Turns refusals into our errors."""
    try:
        yield
    except urllib.error.HTTPError as err:
        if err.code in (401, 403):
            hint = "MLFLOW_TRACKING_USERNAME=… MLFLOW_TRACKING_PASSWORD=… marina …, or MLFLOW_TRACKING_TOKEN=…"
            raise SourceError(f"`{remote.text}`: {server.url} does not let this machine read it", hint=hint) from err
        text = f"`{remote.text}`: {server.url} answered {said(err)}"
        raise SourceError(text, hint="compare the name, and the alias or number, with those of the registry") from err
    except (KeyError, TypeError, ValueError, yaml.YAMLError) as err:
        raise SourceError(f"`{remote.text}`: {server.url} answered what no tracking server does: {err!r}") from err
