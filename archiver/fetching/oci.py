"""Models in registries of containers: ModelPack and KitOps, files as `oras` pushes them, and images with a folder
`/models`."""

import gzip
import hashlib
import json
import platform
import re
import shutil
import tarfile
import urllib.error
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar
from urllib.parse import urlencode

from marina.archiver.fetching.credentials import registry_credentials
from marina.archiver.fetching.found import Busy, Found, retried
from marina.archiver.fetching.http import download, open_url, read_json, said
from marina.archiver.fetching.wanted import wanted_files
from marina.config.errors import SourceError
from marina.config.progress import Progress
from marina.config.record import file_sha256
from marina.config.remote import Remote

T = TypeVar("T")
# Where layers are until all of them are there.
_LAYERS = ".layers"
_MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
# What a layer that zstd compressed begins with.
_ZSTD = b"\x28\xb5\x2f\xfd"
# Says that a layer of `oras` is a folder.
_UNPACK = "io.deis.oras.content.unpack"
# The name of a file that is a layer of its own.
_TITLES = ("org.cncf.model.filepath", "org.opencontainers.image.title")
# What nobody loads a model from.
_UNUSED = re.compile(r"\.(dataset|datasets|doc|docs|code)\.")
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


class Registry:
    """One repository of a registry; a registry on this machine is asked without TLS."""

    def __init__(self, place: str) -> None:
        self.host, _, self.name = place.partition("/")
        if self.host == "docker.io":
            self.host = "registry-1.docker.io"
        is_here = self.host.partition(":")[0] in ("localhost", "127.0.0.1")
        self.url = f"{'http' if is_here else 'https'}://{self.host}/v2/{self.name}"
        self._headers: dict[str, str] = {}

    def manifest(self, reference: str) -> tuple[str, dict[str, Any]]:
        """The digest and the content of a manifest."""

        def ask() -> bytes:
            headers = {"Accept": ", ".join(_MANIFESTS), **self._headers}
            with open_url(f"{self.url}/manifests/{reference}", headers) as answer:
                data: bytes = answer.read()
                return data

        data = self._authorised(ask)
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        if reference.startswith("sha256:") and digest != reference:
            raise Busy(f"the manifest {reference} is damaged")
        return digest, json.loads(data)

    def fetch(self, layer: dict[str, Any], file: Path) -> None:
        """Downloads a layer, and compares it with its digest."""
        digest = layer["digest"]
        address = f"{self.url}/blobs/{digest}"
        self._authorised(lambda: download(address, file, self._headers, layer["size"]))
        if digest.startswith("sha256:") and f"sha256:{file_sha256(file)}" != digest:
            file.unlink()
            raise Busy(f"the layer {digest} is damaged")

    def _authorised(self, ask: Callable[[], T]) -> T:
        """The answer to a request, with a new token if the registry asks for one: they last for minutes."""
        try:
            return ask()
        except urllib.error.HTTPError as err:
            challenge = err.headers.get("WWW-Authenticate", "")
            if err.code != 401 or not challenge:
                raise
            self._headers = {"Authorization": self._token(challenge)}
        return ask()

    def _token(self, challenge: str) -> str:
        kind, _, rest = challenge.partition(" ")
        login = registry_credentials(self.host)
        basic = {"Authorization": f"Basic {login}"} if login else {}
        if kind.lower() != "bearer":
            return basic.get("Authorization", "")
        asked = dict(re.findall(r'(\w+)="([^"]*)"', rest))
        query = {"service": asked.get("service", ""), "scope": asked.get("scope", f"repository:{self.name}:pull")}
        got = read_json(f"{asked['realm']}?{urlencode(query)}", basic)
        return f"Bearer {got.get('token') or got.get('access_token')}"


def look(remote: Remote, progress: Progress, attempts: int) -> Found:
    """Asks a registry which digest a tag has, and which layers."""
    registry = Registry(remote.place)

    def ask() -> tuple[str, dict[str, Any]]:
        with _named_errors(remote, registry):
            digest, manifest = registry.manifest(remote.version or "latest")
            while "manifests" in manifest:
                _, manifest = registry.manifest(_of_this_machine(manifest["manifests"])["digest"])
            return digest, manifest

    digest, manifest = retried(remote.text, ask, progress, attempts=attempts)
    layers = _used_layers(remote, manifest)

    def get(name: str, file: Path) -> None:
        def download_layer() -> None:
            with _named_errors(remote, registry):
                registry.fetch(layers[name], file)

        retried(remote.text, download_layer, progress)

    sizes = {name: layer["size"] for name, layer in layers.items()}
    return Found(digest, sizes, get, unpack=partial(_unpack, remote, layers))


def _of_this_machine(manifests: list[dict[str, Any]]) -> dict[str, Any]:
    """The manifest for this machine of those for several; the first if none is."""
    machine = _MACHINES.get(platform.machine(), platform.machine())
    fitting = [entry for entry in manifests if entry.get("platform", {}).get("architecture") == machine]
    return (fitting or manifests)[0]


def _used_layers(remote: Remote, manifest: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The layers to fetch, by the path that each is fetched to: those that a model is loaded from, in their order."""
    layers = [layer for layer in manifest.get("layers", ()) if not _UNUSED.search(layer["mediaType"])]
    titles = [_title(layer) for layer in layers if not _is_tar(layer)]
    if remote.file in titles:
        layers = [layer for layer in layers if _title(layer) == remote.file]
    elif remote.is_folder:
        root = _root_of(titles)
        wanted = [root + name for name in wanted_files(name.removeprefix(root) for name in titles)]
        layers = [layer for layer in layers if _is_tar(layer) or _title(layer) in wanted]
    if not layers:
        raise SourceError(
            f"`{remote.text}`: nothing in it is a model, allowed: ModelPack, files or `/models` of an image"
        )
    return {f"{_LAYERS}/{place:03d}": layer for place, layer in enumerate(layers)}


def _title(layer: dict[str, Any]) -> str:
    """The name of a layer that is one file."""
    notes = layer.get("annotations") or {}
    name = next((str(notes[title]) for title in _TITLES if title in notes), layer["digest"].replace(":", "-"))
    return PurePosixPath(name).as_posix().lstrip("/")


def _is_tar(layer: dict[str, Any]) -> bool:
    """Whether a layer holds several files. What `oras` pushes is called a tar, but is the file itself if it has a title
    and does not say otherwise."""
    notes, kind = layer.get("annotations") or {}, layer["mediaType"]
    if notes.get(_UNPACK) == "true":
        return True
    return ".tar" in kind and (_TITLES[1] not in notes or ".model" in kind)


def _is_image(layer: dict[str, Any]) -> bool:
    return ".image." in layer["mediaType"] and _UNPACK not in (layer.get("annotations") or {})


def _unpack(remote: Remote, layers: dict[str, dict[str, Any]], folder: Path) -> list[str]:
    """Puts the model's files into the folder in which its layers are, a later layer over an earlier one."""
    files: dict[str, Path] = {}
    scratch = folder / _LAYERS / "files"
    shutil.rmtree(scratch, ignore_errors=True)
    for number, (name, layer) in enumerate(layers.items()):
        if _is_tar(layer):
            _extract(remote, folder / name, layer, scratch / str(number), files)
        else:
            files[_title(layer)] = folder / name
    root = "" if remote.file else _root_of(files)
    inside = {name.removeprefix(root): file for name, file in files.items() if name.startswith(root)}
    names = [remote.file] if remote.file in inside else [] if remote.file else wanted_files(inside)
    if not names:
        held = ", ".join(f"`{name}`" for name in sorted(inside)[:20])
        text = f"has no file `{remote.file}`" if remote.file else "holds no model as `transformers` saves it"
        one = next((name for name in sorted(inside) if name.endswith((".safetensors", ".pt2", ".pt"))), None)
        hint = f"one file of it: {remote.text.partition('#')[0]}#{one or min(inside)}" if inside else None
        raise SourceError(f"`{remote.text}`: it {text}, but {held or 'nothing'}", hint=hint)
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        inside[name].replace(folder / name)
    shutil.rmtree(folder / _LAYERS)
    return names


def _root_of(names: Iterable[str]) -> str:
    """The folder that the model is in, with a slash: of those with a `config.json`, the one that is nearest to the top;
    if several are as near, or none has one, the top."""
    places = sorted((name.count("/"), name.removesuffix("config.json")) for name in names if _is_config(name))
    alone = len(places) == 1 or (len(places) > 1 and places[0][0] < places[1][0])
    return places[0][1] if alone else ""


def _is_config(name: str) -> bool:
    return PurePosixPath(name).name == "config.json"


def _extract(remote: Remote, file: Path, layer: dict[str, Any], into: Path, files: dict[str, Path]) -> None:
    """Extracts a layer's plain files; of an image's only those in `/models`."""
    is_image = _is_image(layer)
    try:
        with _opened_tar(file) as archive:
            for member in archive:
                name = PurePosixPath(member.name).as_posix().lstrip("/")
                if is_image:
                    if not name.startswith("models/"):
                        continue
                    name = name.removeprefix("models/")
                path = PurePosixPath(name)
                if path.name.startswith(".wh."):
                    files.pop(str(path.with_name(path.name.removeprefix(".wh."))), None)
                # Whoever packed it may not choose where on this machine it is written.
                elif member.isfile() and ".." not in path.parts:
                    stream, target = archive.extractfile(member), into / path
                    assert stream
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with target.open("wb") as copy:
                        shutil.copyfileobj(stream, copy, 1 << 20)
                    files[str(path)] = target
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, OSError) as err:
        text = f"`{remote.text}`: the layer {layer['digest']} (`{layer['mediaType']}`) cannot be unpacked: {err}"
        raise SourceError(text, hint="push it as `.raw`, `.tar`, `.tar+gzip` or `.tar+zstd`") from err


@contextmanager
def _opened_tar(file: Path) -> Iterator[tarfile.TarFile]:
    """A layer's archive, whatever it is compressed with."""
    with file.open("rb") as stream:
        packed = stream.read(len(_ZSTD)) == _ZSTD
    if not packed:
        with tarfile.open(file, "r:*") as archive:
            yield archive
        return
    # Only few layers are packed so.
    import zstandard

    try:
        with zstandard.open(file) as unpacked, tarfile.open(fileobj=unpacked, mode="r|") as archive:
            yield archive
    except zstandard.ZstdError as err:
        raise tarfile.ReadError(str(err)) from err


@contextmanager
def _named_errors(remote: Remote, registry: Registry) -> Iterator[None]:
    """Turns refusals into our errors."""
    try:
        yield
    except urllib.error.HTTPError as err:
        reason = said(err)
        if err.code in (401, 403):
            text = f"`{remote.text}`: {registry.host} does not let this machine read it ({reason})"
            raise SourceError(text, hint=f"docker login {registry.host}") from err
        if err.code == 404:
            text = f"`{remote.text}`: {registry.host} has no `{registry.name}:{remote.version or 'latest'}`"
            raise SourceError(text, hint=f"its tags: {registry.url}/tags/list") from err
        raise SourceError(f"`{remote.text}`: {registry.host} answered {reason}") from err
    except (KeyError, TypeError, ValueError) as err:
        raise SourceError(f"`{remote.text}`: {registry.host} answered what no registry does: {err}") from err
