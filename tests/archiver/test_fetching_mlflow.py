"""Models in MLflow's registry: its own server, asked by its REST API."""

import json
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hub import Files, files_in
from specs import ROOT, TALES
from stores import known, serving_s3
from tools import skip_unless_required

from marina.archiver.fetching import fetch_remote, moved_sources
from marina.config.errors import InputError, SourceError
from marina.config.progress import Progress
from marina.config.record import Pin
from marina.config.remote import parse_remote
from marina.config.spec import Fetched

PYTHON = ROOT / "build/mlflow/bin/python"
MODEL = files_in(TALES.parent / "model")
QUIET = Progress(quiet=True)
# As MLflow lays out what `transformers` saves: the tokenizer has a folder of its own.
SAVED = {
    "MLmodel": b"flavors:\n  transformers: {model_binary: model, components: [tokenizer], tokenizer_type: T}\n",
    **{f"components/tokenizer/{name}": data for name, data in MODEL.items() if name.startswith("tok")},
    **{f"model/{name}": data for name, data in MODEL.items() if not name.startswith("tok")},
}
PICKLED = {
    "MLmodel": b"flavors:\n  pytorch: {model_data: data}\n  python_function: {}\n",
    "data/model.pth": b"pickle",
    "data/state_dict.pt": b"weights",
}


@dataclass
class Registry:
    url: str

    def ask(self, call: str, **fields: Any) -> Any:
        return self._send("POST", f"mlflow/{call}", json.dumps(fields).encode(), "application/json")

    def add(self, name: str, files: Files, alias: str) -> str:
        """Registers files as a new version of a model, and gives it an alias; returns its number."""
        run = self.ask("runs/create", experiment_id="0")["run"]["info"]
        folder = run["artifact_uri"].partition(":/")[2].strip("/")
        for path, data in files.items():
            self._send("PUT", f"mlflow-artifacts/artifacts/{folder}/m/{quote(path)}", data, "application/octet-stream")
        source = f"runs:/{run['run_id']}/m"
        added = self.ask("model-versions/create", name=name, source=source, run_id=run["run_id"])["model_version"]
        self.ask("registered-models/alias", name=name, alias=alias, version=added["version"])
        return str(added["version"])

    def _send(self, method: str, call: str, data: bytes, kind: str) -> Any:
        request = urllib.request.Request(f"{self.url}/api/2.0/{call}", data, {"Content-Type": kind}, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read() or b"{}")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if not PYTHON.exists():
        skip_unless_required("MLflow is not installed: `tests/mlflow_server.py` says how")
    folder = tmp_path_factory.mktemp("mlflow")
    command = [str(PYTHON), str(ROOT / "tests/mlflow_server.py"), str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout
            line = process.stdout.readline()
            assert line.startswith("port "), "it ended before it listened"
            yield f"http://127.0.0.1:{line.removeprefix('port ').strip()}"
        finally:
            process.kill()


@pytest.fixture
def models(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Registry(server)


def fetch(text: str) -> Fetched:
    remote = parse_remote(text)
    assert remote
    return fetch_remote(remote, QUIET)


@pytest.mark.slow
def test_an_alias_is_fetched_as_the_version_that_it_is_now(models: Registry) -> None:
    models.ask("registered-models/create", name="tales")
    assert models.add("tales", SAVED, "champion") == "1"
    text = "mlflow:models:/tales@champion"
    got = fetch(text)
    assert (got.version, files_in(got.path)) == ("1", MODEL)
    pins = {text: Pin(version="1", files={}), "mlflow:models:/tales/1": Pin(version="1", files={})}
    assert list(moved_sources(pins)) == []
    models.add("tales", SAVED | {"model/config.json": b"{}"}, "champion")
    assert list(moved_sources(pins)) == [f"`{text}` has moved since it was packaged: it was 1, and now it is 2"]
    assert (fetch(text).path / "config.json").read_bytes() == b"{}"
    assert files_in(fetch("mlflow:models:/tales/1").path) == MODEL


@pytest.mark.slow
def test_a_version_comes_from_the_store_that_its_server_names(
    models: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, data in SAVED.items():
        file = tmp_path / "buckets/models/tales" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    models.ask("registered-models/create", name="stored")
    models.ask("model-versions/create", name="stored", source="s3://models/tales")
    with serving_s3(tmp_path / "buckets") as endpoint:
        known(monkeypatch, endpoint)
        assert files_in(fetch("mlflow:models:/stored/1").path) == MODEL
        assert fetch("mlflow:models:/stored/1#MLmodel").path.read_bytes() == SAVED["MLmodel"]


@pytest.mark.slow
def test_of_other_flavours_a_file_is_named(models: Registry) -> None:
    models.ask("registered-models/create", name="net")
    models.add("net", PICKLED, "champion")
    with pytest.raises(SourceError, match="its flavours are `python_function`, `pytorch`") as caught:
        fetch("mlflow:models:/net@champion")
    assert caught.value.hint == "mlflow:models:/net@champion#data/model.pth"
    assert fetch("mlflow:models:/net@champion#data/state_dict.pt").path.read_bytes() == b"weights"


@pytest.mark.slow
@pytest.mark.usefixtures("models")
def test_what_is_wrong_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SourceError, match="Registered Model with name=none not found") as caught:
        fetch("mlflow:models:/none@champion")
    assert "compare the name" in str(caught.value.hint)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    with pytest.raises(InputError, match=r"got `sqlite:///mlflow\.db`, allowed: the `http://` address") as caught:
        fetch("mlflow:models:/none@champion")
    assert "mlflow server" in str(caught.value.hint)
