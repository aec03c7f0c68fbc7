"""Models from private stores: a real S3 server, an emulator of Google's, and presigned URLs."""

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from obstore import sign
from obstore.store import S3Store
from stores import KEYS, asked, known, known_to_google, serving_azure, serving_google, serving_s3

from marina.config.errors import InputError
from marina.server.fetch import fetch

MAR = b"model " * 500_000
SHA256 = hashlib.sha256(MAR).hexdigest()


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with the MAR in a bucket `models`; it answers requests that are signed with the right keys."""
    buckets = tmp_path_factory.mktemp("s3")
    (buckets / "models/digits").mkdir(parents=True)
    (buckets / "models/digits/1.0.mar").write_bytes(MAR)
    with serving_s3(buckets) as address:
        yield address


def test_a_mar_comes_from_s3_with_the_keys_of_the_environment(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(monkeypatch, s3)
    file = tmp_path / "model.mar"
    fetch(file, sha256=SHA256, url="s3://models/digits/1.0.mar", pause_s=0)
    assert file.read_bytes() == MAR
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["model.mar"]


@pytest.mark.parametrize(
    ("url", "keys"),
    [
        ("s3://models/digits/2.0.mar", {}),
        ("s3://models/digits/1.0.mar", {"AWS_ACCESS_KEY_ID": "stranger"}),
        ("s3://models/digits/1.0.mar", {"AWS_SECRET_ACCESS_KEY": "hush-hash"}),
    ],
    ids=["absent", "another key", "another secret"],
)
def test_what_the_store_refuses_is_told_at_once_and_without_a_secret(
    url: str, keys: dict[str, str], s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(monkeypatch, s3, **keys)
    with pytest.raises(InputError) as caught:
        # The pause is so long that a second attempt would run into the test's own timeout.
        fetch(tmp_path / "model.mar", sha256=SHA256, url=url, pause_s=3600)
    assert caught.value.message.startswith(f"{url}: not downloaded: ")
    assert "hush" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_is_away_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    known(monkeypatch, "http://127.0.0.1:9")
    with pytest.raises(InputError, match="not downloaded"):
        fetch(tmp_path / "model.mar", sha256=SHA256, url="s3://models/x.mar", pause_s=0)
    assert "attempt 4 of 5" in capfd.readouterr().err


def presigned(endpoint: str) -> str:
    store = S3Store(
        "models",
        endpoint=endpoint,
        access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
        secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
        region="eu-central-1",
        client_options={"allow_http": True},
    )
    url: str = sign(store, "GET", "digits/1.0.mar", timedelta(minutes=5))
    assert "X-Amz-Signature=" in url
    return url


def loaded(file: Path, sha256: str, source: list[str], **keys: str) -> subprocess.CompletedProcess[str]:
    """Runs the init container's program with a Secret, as Kubernetes mounts it."""
    secret = file.parent / "secret"
    (secret / "..data").mkdir(parents=True, exist_ok=True)
    for name, value in {**keys, "account.json": "{}"}.items():
        (secret / name).write_text(f"{value}\n", encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "marina.server.fetch",
        str(file),
        "--sha256",
        sha256,
        *source,
        "--secret",
        str(secret),
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_keys_of_a_mounted_secret_open_the_store(s3: str, tmp_path: Path) -> None:
    file = tmp_path / "model.mar"
    done = loaded(file, SHA256, ["--from", "s3://models/digits/1.0.mar"], **KEYS, AWS_ENDPOINT_URL=s3)
    assert done.returncode == 0, done.stderr
    assert file.read_bytes() == MAR


@pytest.mark.slow
def test_a_presigned_address_is_taken_from_the_secret_and_printed_without_its_query(s3: str, tmp_path: Path) -> None:
    url, file = presigned(s3), tmp_path / "model.mar"
    done = loaded(file, SHA256, ["--from-environment"], MODEL_URL=url)
    assert (done.returncode, file.read_bytes() == MAR) == (0, True)
    signature = url.rpartition("X-Amz-Signature=")[2]
    unsigned = url.replace(signature, "0" * len(signature))
    for sha256, address in (("0" * 64, url), (SHA256, url.replace("1.0.mar", "2.0.mar")), (SHA256, unsigned)):
        refused = loaded(tmp_path / "another.mar", sha256, ["--from-environment"], MODEL_URL=address)
        assert refused.returncode == 2
        assert address.partition("?")[0] + "?…" in refused.stderr
        assert address.rpartition("=")[2] not in refused.stdout + refused.stderr
        assert "X-Amz" not in refused.stdout + refused.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("", "missing in the Secret"),
        ("models/x?sig=1", "not an address"),
        ("https://[store/x?sig=1", "not an address"),
        ("https://store:1x/x?sig=1", "not an address"),
        # Python's client refuses these two, and its message repeats the query.
        ("http://127.0.0.1:9/my model.mar?sig=1", "not an address"),
        ("http://127.0.0.1:9/modèle.mar?sig=1", "not an address"),
    ],
)
def test_a_secret_without_an_address_says_what_to_type(url: str, text: str, tmp_path: Path) -> None:
    done = loaded(tmp_path / "model.mar", SHA256, ["--from-environment"], MODEL_URL=url)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: `MODEL_URL`: {text}")
    assert "sig=1" not in done.stderr


@pytest.mark.slow
def test_a_url_with_a_line_end_after_it_is_taken_without_it(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(monkeypatch, s3)
    # As `kubectl create secret generic NAME --from-file=MODEL_URL=FILE` stores it.
    monkeypatch.setenv("MODEL_URL", presigned(s3) + "\n")
    command = [sys.executable, "-m", "marina.server.fetch", str(tmp_path / "model.mar"), "--sha256", SHA256]
    done = subprocess.run([*command, "--from-environment"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_secret_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "KEY").write_bytes(b"\xff\xfe")
    for folder, said in ((tmp_path, f"`{tmp_path}/KEY` is not text"), (tmp_path / "gone", "No such file or directory")):
        command = [
            sys.executable,
            "-m",
            "marina.server.fetch",
            "model.mar",
            "--sha256",
            SHA256,
            "--secret",
            str(folder),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert done.stderr.startswith("error: `--secret`: ")
        assert done.stderr.endswith(f"{said}\n")


def test_a_mar_comes_from_google_with_the_file_of_an_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving_google() as url:
        known_to_google(url, tmp_path, monkeypatch)
        asked(f"{url}/storage/v1/b?project=p", b'{"name": "models"}')
        asked(f"{url}/upload/storage/v1/b/models/o?uploadType=media&name=digits.mar", MAR)
        file = tmp_path / "model.mar"
        fetch(file, sha256=SHA256, url="gs://models/digits.mar", pause_s=0)
        assert file.read_bytes() == MAR


def test_a_mar_comes_from_azure_with_the_key_of_an_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits/1.0.mar").write_bytes(MAR)
    with serving_azure(tmp_path, monkeypatch) as upload:
        upload("digits")
        file = tmp_path / "model.mar"
        fetch(file, sha256=SHA256, url="az://models/digits/1.0.mar", pause_s=0)
        assert file.read_bytes() == MAR
