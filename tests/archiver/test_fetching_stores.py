"""Folders and files from stores: a real S3 server, and the emulators of Google's and Azure's."""

import json
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from hub import files_in
from specs import TALES
from stores import asked, known, known_to_google, serving_azure, serving_google, serving_s3

import marina
from marina.archiver.fetching import fetch_remote, moved_sources
from marina.archiver.fetching.cache import part_of, version_folder
from marina.config.errors import SourceError
from marina.config.progress import Progress
from marina.config.record import Pin, file_sha256, read_package
from marina.config.remote import Remote, parse_remote
from marina.config.spec import Fetched

MODEL = files_in(TALES.parent / "model")
QUIET = Progress(quiet=True)
Upload = Callable[[], None]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a model, with a copy of its weights for another library; the cache is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shutil.copytree(TALES.parent / "model", tmp_path / "models/tales")
    (tmp_path / "models/tales/tf_model.h5").write_bytes(b"copy")
    return tmp_path / "models/tales"


@pytest.fixture(params=["s3", "gs", "az"])
def store(
    request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, Upload]]:
    """The address of a bucket, and what uploads the folder as it is now."""
    if request.param == "s3":
        with serving_s3(folder.parents[1]) as endpoint:
            known(monkeypatch, endpoint)
            yield "s3://models", lambda: None
    elif request.param == "gs":
        with serving_google() as url:
            known_to_google(url, folder.parents[1], monkeypatch)
            asked(f"{url}/storage/v1/b?project=p", b'{"name": "models"}')

            def upload() -> None:
                for name, data in files_in(folder).items():
                    where = quote(f"tales/{name}", safe="")
                    asked(f"{url}/upload/storage/v1/b/models/o?uploadType=media&name={where}", data)

            upload()
            yield "gs://models", upload
    else:
        with serving_azure(folder.parent, monkeypatch) as upload_folder:
            upload_folder("tales")
            yield "az://models", lambda: upload_folder("tales")


def remote_of(text: str) -> Remote:
    remote = parse_remote(text)
    assert remote
    return remote


def fetch(text: str) -> Fetched:
    return fetch_remote(remote_of(text), QUIET)


@pytest.mark.slow
def test_a_folder_and_its_files_come_from_a_store_until_they_change(store: tuple[str, Upload], folder: Path) -> None:
    bucket, upload = store
    got = fetch(f"{bucket}/tales")
    assert files_in(got.path) == MODEL
    weights = fetch(f"{bucket}/tales/model.safetensors")
    assert weights.path.read_bytes() == MODEL["model.safetensors"]
    assert fetch(f"{bucket}/tales#tf_model.h5").path.read_bytes() == b"copy"
    pins = {f"{bucket}/tales": Pin(version=got.version, files={})}
    assert list(moved_sources(pins)) == []
    # A file that no model is loaded from.
    (folder / "tf_model.h5").write_bytes(b"another copy")
    upload()
    assert fetch(f"{bucket}/tales").version == got.version
    (folder / "config.json").write_bytes(MODEL["config.json"] + b"\n")
    upload()
    (moved,) = moved_sources(pins)
    assert moved.startswith(f"`{bucket}/tales` has moved since it was packaged: ")
    assert fetch(f"{bucket}/tales").version != got.version
    with pytest.raises(SourceError, match=f"`{bucket}/none`: nothing is there"):
        fetch(f"{bucket}/none")
    with pytest.raises(SourceError, match=f"`{bucket}/none.pt2`: not there"):
        fetch(f"{bucket}/none.pt2")


@pytest.mark.slow
def test_a_download_goes_on_where_it_ended(store: tuple[str, Upload]) -> None:
    remote = remote_of(f"{store[0]}/tales/model.safetensors")
    first = fetch(remote.text)
    # As if that run had been interrupted, with a part that shows whether it was used.
    first.path.unlink()
    data = MODEL["model.safetensors"]
    part_of(version_folder(remote, first.version) / "model.safetensors").write_bytes(b"x" * 1000 + data[1000:5000])
    # rclone sends only whole objects.
    goes_on = b"" if remote.scheme == "s3" else b"x" * 1000
    assert fetch(remote.text).path.read_bytes() == goes_on + data[len(goes_on) :]


def test_a_store_that_is_away_or_refuses_says_what_to_set(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marina.archiver.fetching.found.sleep", lambda _: None)
    with serving_s3(folder.parents[1]) as endpoint:
        known(monkeypatch, endpoint, AWS_SECRET_ACCESS_KEY="another")
        with pytest.raises(SourceError, match=r"`s3://models/tales`: this machine may not read it") as caught:
            fetch("s3://models/tales")
        assert "AWS_SECRET_ACCESS_KEY" in str(caught.value.hint)
        known(monkeypatch, endpoint)
        got = fetch("s3://models/tales")
    with pytest.raises(SourceError) as caught:
        fetch("s3://models/tales")
    assert caught.value.hint == f"to use what the cache has, write `hf:{got.path}`"


def test_an_archive_is_adopted_from_a_store(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = {"model": {"modelName": "old", "handler": "handler.py", "modelVersion": "2.0"}}
    with zipfile.ZipFile(folder.parent / "old.mar", "w") as archive:
        archive.writestr("MAR-INF/MANIFEST.json", json.dumps(manifest))
        archive.writestr("handler.py", "def handle(data, context):\n    return [1] * len(data or ())\n")
    monkeypatch.chdir(folder.parent)
    with serving_s3(folder.parents[1]) as endpoint:
        known(monkeypatch, endpoint)
        assert marina.main(["init", "mine", "--quiet", "--source", "s3://models/old.mar"]) == 0
        Path("mine/samples").mkdir()
        Path("mine/samples/request.json").write_text("{}")
        assert marina.main(["package", "mine/spec.yaml", "--quiet"]) == 0
    pins = read_package(Path("build/mine")).record.pins
    assert pins["s3://models/old.mar"].files == {"old.mar": file_sha256(Path("old.mar"))}
