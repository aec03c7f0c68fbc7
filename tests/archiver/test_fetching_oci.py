"""Models in a registry: Debian's docker-registry, with ModelPack, KitOps, files and images in it."""

import base64
import gzip
import hashlib
import json
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urljoin, urlsplit

import pytest
import zstandard
from hub import Files, files_in
from images import registry
from oci import layer
from specs import TALES
from tools import needs

from marina.archiver.fetching import fetch_remote, moved_sources
from marina.archiver.fetching.cache import part_of, version_folder
from marina.config.errors import SourceError
from marina.config.progress import Progress
from marina.config.record import Pin
from marina.config.remote import Remote, parse_remote
from marina.config.spec import Fetched

# Python's own from 3.14 on.
MODEL = files_in(TALES.parent / "model")
QUIET = Progress(quiet=True)
TITLE, FILEPATH = "org.opencontainers.image.title", "org.cncf.model.filepath"
LOGIN = base64.b64encode(b"reader:hush").decode()
HTPASSWD = "reader:$2b$04$hFMv.dCow0LF/X3Xr3THq.W1bLl3zyfKSFqil.BafAWvPrCYzjyGu\n"
Layer = tuple[str, bytes, dict[str, str]]


@dataclass
class Pushes:
    """A registry, and what pushes to it."""

    host: str
    headers: dict[str, str]

    def push(self, name: str, layers: list[Layer], kind: str = "application/vnd.oci.image.manifest.v1+json") -> str:
        """Pushes layers with their media types and annotations; returns the digest of their manifest."""
        described = [
            self._blob(name, data) | {"mediaType": kind_of, "annotations": notes} for kind_of, data, notes in layers
        ]
        config = self._blob(name, b"{}") | {"mediaType": "application/vnd.cncf.model.config.v1+json"}
        manifest = {"schemaVersion": 2, "mediaType": kind, "config": config, "layers": described}
        data = json.dumps(manifest).encode()
        self._ask("PUT", f"http://{self.host}/v2/{name}/manifests/1", data, {"Content-Type": kind})
        return f"sha256:{hashlib.sha256(data).hexdigest()}"

    def _blob(self, name: str, data: bytes) -> dict[str, Any]:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        begun = self._ask("POST", f"http://{self.host}/v2/{name}/blobs/uploads/", b"")
        place = urljoin(f"http://{self.host}", begun["Location"])
        separator = "&" if "?" in place else "?"
        self._ask("PUT", f"{place}{separator}digest={digest}", data, {"Content-Type": "application/octet-stream"})
        return {"digest": digest, "size": len(data)}

    def _ask(self, method: str, url: str, data: bytes, headers: dict[str, str] | None = None) -> Any:
        request = urllib.request.Request(url, data, {**self.headers, **(headers or {})}, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.headers


@pytest.fixture
def pushes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pushes]:
    """A registry that wants a login, which `docker login` has left on this machine."""
    program = needs("docker-registry", package="docker-registry")
    (tmp_path / "htpasswd").write_text(HTPASSWD)
    monkeypatch.setenv("REGISTRY_AUTH_HTPASSWD_PATH", str(tmp_path / "htpasswd"))
    monkeypatch.setenv("REGISTRY_AUTH_HTPASSWD_REALM", "models")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with registry(program, tmp_path) as port:
        host = f"127.0.0.1:{port}"
        (tmp_path / "config.json").write_text(json.dumps({"auths": {host: {"auth": LOGIN}}}))
        yield Pushes(host, {"Authorization": f"Basic {LOGIN}"})


def remote_of(text: str) -> Remote:
    remote = parse_remote(text)
    assert remote
    return remote


def fetch(text: str) -> Fetched:
    return fetch_remote(remote_of(text), QUIET)


def below(folder: str, files: Files) -> Files:
    return {f"{folder}/{name}": data for name, data in files.items()}


def modelpack() -> list[Layer]:
    """As `modctl` and others write it: settings in one archive, weights as they are, and data that no pod needs."""
    settings = {name: data for name, data in MODEL.items() if name != "model.safetensors"}
    return [
        ("application/vnd.cncf.model.weight.config.v1.tar", layer(settings), {FILEPATH: "."}),
        ("application/vnd.cncf.model.weight.v1.raw", MODEL["model.safetensors"], {FILEPATH: "model.safetensors"}),
        ("application/vnd.cncf.model.dataset.v1.tar", layer({"train.json": b"[]"}), {FILEPATH: "train.json"}),
    ]


FORMS: dict[str, list[Layer]] = {
    "modelpack": modelpack(),
    "kitops": [
        ("application/vnd.kitops.modelkit.model.v1.tar+gzip", gzip.compress(layer(below("./out/model", MODEL))), {}),
        ("application/vnd.kitops.modelkit.docs.v1.tar+gzip", gzip.compress(layer({"config.json": b"docs"})), {}),
    ],
    "zstd": [
        ("application/vnd.cncf.model.weight.v1.tar+zstd", zstandard.compress(layer(MODEL)), {FILEPATH: "."}),
        ("application/vnd.cncf.model.doc.v1.tar+zstd", zstandard.compress(layer({"config.json": b"docs"})), {}),
    ],
    # What `oras push` calls a tar is the file itself.
    "files": [("application/vnd.oci.image.layer.v1.tar", data, {TITLE: name}) for name, data in sorted(MODEL.items())]
    + [("application/vnd.oci.image.layer.v1.tar", b"copy", {TITLE: "tf_model.h5"})],
    "image": [
        ("application/vnd.oci.image.layer.v1.tar", layer({"bin/sh": b"", "models/old.json": b"{}"}), {}),
        (
            "application/vnd.oci.image.layer.v1.tar+gzip",
            gzip.compress(layer(below("models", MODEL | {".wh.old.json": b""}))),
            {},
        ),
    ],
}


def test_every_form_of_a_model_becomes_its_folder_and_moves_with_its_tag(pushes: Pushes) -> None:
    for form, layers in FORMS.items():
        text = f"oci://{pushes.host}/models/{form}:1"
        digest = pushes.push(f"models/{form}", layers)
        got = fetch(text)
        assert (got.version, files_in(got.path)) == (digest, MODEL)
        assert fetch(text) == got
        pins = {
            text: Pin(version=digest, files={}),
            f"oci://{pushes.host}/models/{form}@{digest}": Pin(version="", files={}),
        }
        assert list(moved_sources(pins)) == []
        moved = pushes.push(f"models/{form}", layers[::-1])
        assert list(moved_sources(pins)) == [
            f"`{text}` has moved since it was packaged: it was {digest}, and now it is {moved}"
        ]
        assert files_in(fetch(f"oci://{pushes.host}/models/{form}:1@{digest}").path) == MODEL


def test_one_file_is_fetched_alone(pushes: Pushes) -> None:
    pushes.push("models/net", [*FORMS["files"], *modelpack()[:1]])
    assert fetch(f"oci://{pushes.host}/models/net:1#tf_model.h5").path.read_bytes() == b"copy"
    with pytest.raises(SourceError, match=r"it has no file `net\.pt2`, but `chat_template.jinja`, "):
        fetch(f"oci://{pushes.host}/models/net:1#net.pt2")


def test_a_layer_goes_on_where_it_ended_and_is_compared_with_its_digest(pushes: Pushes) -> None:
    digest = pushes.push("models/net", FORMS["kitops"][:1])
    remote = remote_of(f"oci://{pushes.host}/models/net:1")
    part = part_of(version_folder(remote, digest) / ".layers/000")
    part.parent.mkdir(parents=True)
    part.write_bytes(b"damaged")
    assert files_in(fetch(remote.text).path) == MODEL


def test_a_layer_writes_nothing_outside_of_its_folder(pushes: Pushes, tmp_path: Path) -> None:
    outside = {"../../../../../../outside.json": b"{}", "/absolute.json": b"{}"}
    pushes.push("models/net", [("application/vnd.cncf.model.weight.v1.tar", layer(MODEL | outside), {})])
    assert files_in(fetch(f"oci://{pushes.host}/models/net:1").path) == MODEL | {"absolute.json": b"{}"}
    assert not list(tmp_path.rglob("outside.json"))


def test_a_layer_whose_compression_is_damaged_is_named(pushes: Pushes) -> None:
    damaged = zstandard.compress(layer(MODEL))[:-40]
    pushes.push("models/net", [("application/vnd.cncf.model.weight.v1.tar+zstd", damaged, {})])
    with pytest.raises(SourceError, match=r"the layer sha256:\w+ \(`.*zstd`\) cannot be unpacked"):
        fetch(f"oci://{pushes.host}/models/net:1")


def test_a_folder_that_is_no_model_names_a_file_of_it(pushes: Pushes) -> None:
    pushes.push("models/net", [("application/vnd.cncf.model.weight.v1.tar", layer({"b.pt2": b"", "a.md": b""}), {})])
    with pytest.raises(SourceError, match=r"holds no model as `transformers` saves it, but `a.md`, `b.pt2`") as caught:
        fetch(f"oci://{pushes.host}/models/net:1")
    assert caught.value.hint == f"one file of it: oci://{pushes.host}/models/net:1#b.pt2"


def test_what_a_registry_refuses_says_what_to_type(pushes: Pushes, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=f"`oci://{pushes.host}/models/none:1`: {pushes.host} has no `models/none:1`"):
        fetch(f"oci://{pushes.host}/models/none:1")
    (tmp_path / "config.json").unlink()
    with pytest.raises(SourceError, match="does not let this machine read it") as caught:
        fetch(f"oci://{pushes.host}/models/none:1")
    assert caught.value.hint == f"docker login {pushes.host}"


@dataclass
class Tokens:
    """A server of tokens, as registries in clouds have one: it asks for the login, and its tokens are for one scope."""

    folder: Path
    asked: list[str] = field(default_factory=list)

    def make_key(self) -> Path:
        """The certificate of the key that it signs with."""
        words = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=tokens -keyout key.pem -out tokens.pem"
        subprocess.run(["openssl", *words.split()], cwd=self.folder, check=True, capture_output=True)
        return self.folder / "tokens.pem"

    def token(self, scope: str) -> str:
        """A token for a scope such as `repository:models/net:pull`."""
        kind, name, actions = scope.split(":")
        certificate = "".join((self.folder / "tokens.pem").read_text().splitlines()[1:-1])
        claims: dict[str, Any] = {
            "iss": "tokens",
            "sub": "reader",
            "aud": "models",
            "jti": "1",
            "nbf": 0,
            "iat": 0,
            "exp": 2**31,
        }
        claims["access"] = [{"type": kind, "name": name, "actions": actions.split(",")}]
        head = {"typ": "JWT", "alg": "RS256", "x5c": [certificate]}
        signed = b".".join(_in_url(json.dumps(part).encode()) for part in (head, claims))
        sign = ["openssl", "dgst", "-sha256", "-sign", str(self.folder / "key.pem")]
        signature = subprocess.run(sign, input=signed, check=True, capture_output=True).stdout
        return (signed + b"." + _in_url(signature)).decode()

    @contextmanager
    def serving(self) -> Iterator[str]:
        """The address at which it gives tokens to those who are logged in."""

        class Handler(BaseHTTPRequestHandler):
            def do_GET(handler) -> None:  # noqa: N805
                (scope,) = parse_qs(urlsplit(handler.path).query)["scope"]
                self.asked.append(scope)
                welcome = handler.headers["Authorization"] == f"Basic {LOGIN}"
                handler.send_response(200 if welcome else 401)
                handler.end_headers()
                handler.wfile.write(json.dumps({"token": self.token(scope)} if welcome else {}).encode())

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/token"
        finally:
            server.shutdown()
            server.server_close()


def _in_url(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def test_a_registry_that_wants_tokens_is_asked_with_one_for_each_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, tokens = needs("docker-registry", package="docker-registry"), Tokens(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with tokens.serving() as realm:
        settings = {"realm": realm, "service": "models", "issuer": "tokens", "rootcertbundle": str(tokens.make_key())}
        for name, value in settings.items():
            monkeypatch.setenv(f"REGISTRY_AUTH_TOKEN_{name.upper()}", value)
        with registry(program, tmp_path) as port:
            host = f"127.0.0.1:{port}"
            for name in ("models/net", "models/other"):
                push = {"Authorization": f"Bearer {tokens.token(f'repository:{name}:pull,push')}"}
                Pushes(host, push).push(name, FORMS["modelpack"])
            with pytest.raises(SourceError, match="does not let this machine read it") as caught:
                fetch(f"oci://{host}/models/net:1")
            assert caught.value.hint == f"docker login {host}"
            (tmp_path / "config.json").write_text(json.dumps({"auths": {host: {"auth": LOGIN}}}))
            tokens.asked.clear()
            for name in ("models/net", "models/other"):
                assert files_in(fetch(f"oci://{host}/{name}:1").path) == MODEL
    assert tokens.asked == ["repository:models/net:pull", "repository:models/other:pull"]
