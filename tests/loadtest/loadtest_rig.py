"""The small server of the load tests and its package; `loadtest_server` describes how the server can misbehave."""

import hashlib
import json
import os
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from marina.config.load import parse_spec
from marina.config.measured import Machine
from marina.config.ports import free_port_base
from marina.config.render import render_model_config

SERVER = Path(__file__).parent / "loadtest_server.py"
SPEC = """
name: digits
model: {source: torchvision:resnet18, weights: random, handler: image}
slo: {p99_ms: 2000, error_rate: 0.01}
"""


# The machine of records that are written by hand.
MACHINE = Machine(
    processor="Some",
    cores=2,
    cpu_limit=None,
    memory_bytes=2**34,
    memory_limit_bytes=None,
    system="Linux 6",
    python="3.11",
)
# Spins from the first connection on, and holds the interpreter for so many seconds at a time.
SPINNING = """
import sys, time
from _thread import start_new_thread  # a real one: what is imported later may be gevent's
def spin():
    # It takes turns with the sender, and does not outlive a test that was ended by force.
    until = time.monotonic() + 120
    while time.monotonic() < until:
        pass
def begin(event, _, begun=[]):
    if event == "socket.connect" and not begun:
        begun.append(event)
        sys.setswitchinterval(HOLDS_S)
        start_new_thread(spin, ())
if "marina.loadtest.sending.sender" in " ".join(sys.orig_argv):
    sys.addaudithook(begin)
"""


@contextmanager
def spinning_generator(folder: Path, spins: bool = True, holds_s: float = 0.005) -> Iterator[None]:
    """Every generator that is started inside the context also spins; by default it holds the interpreter as long as any
    thread of Python."""
    if not spins:
        yield
        return
    (folder / "sitecustomize.py").write_text(SPINNING.replace("HOLDS_S", str(holds_s)))
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(folder)
    try:
        yield
    finally:
        os.environ.pop("PYTHONPATH")
        os.environ.update({} if before is None else {"PYTHONPATH": before})


def write_package(folder: Path, *, sample: int = 300, spec_text: str = SPEC, **more: Any) -> str:
    """Writes a package record, and a MAR with that record, the settings and a sample of this size; returns its hash.

    `spec_text` is the spec, and `more` are fields of the record."""
    spec = parse_spec(spec_text, folder / "spec.yaml", files=False)
    folder.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = {
        "schema": "marina.package/1", "name": "digits", "version": "1.0", "source": "s", "weights": None,
        "handler": "image", "precision": "fp32", "compile": "aot", "device": "cpu",
        "workers": spec.workers, "threads": spec.threads,
        "batch_sizes": [*spec.model.batch_sizes], "image": None, "inputs": [], "outputs": [], "labels": None,
        "max_request_bytes": 1, "max_response_bytes": 1,
        "sample": {"file": "sample.png", "content_type": "image/png"},
        "key": {"torch": "2", "device": "cpu"}, "artifacts": [], "program": None, "cache": None,
        "agreement": {
            "inputs": "generated", "count": 1, "measure": "top-1", "agreement": 1, "max_abs_difference": 0, "cosine": 1,
        },
        "files": {}, **more,
    }  # fmt: skip
    mar = folder / "model.mar"
    with zipfile.ZipFile(mar, "w") as archive:
        archive.writestr(zipfile.ZipInfo("sample.png"), b"\x89PNG" + bytes(sample))
        archive.writestr(zipfile.ZipInfo("model-config.yaml"), render_model_config(spec))
        archive.writestr(zipfile.ZipInfo("marina.json"), json.dumps(record))
    sha256 = hashlib.sha256(mar.read_bytes()).hexdigest()
    package = {"mar": "model.mar", "sha256": sha256, "bytes": mar.stat().st_size, "record": record}
    (folder / "package.json").write_text(json.dumps(package))
    return sha256


def command(sha256: str) -> list[str]:
    return [sys.executable, str(SERVER), sha256]


@contextmanager
def running_server(folder: Path) -> Iterator[str]:
    """Runs a server of the package that `write_package` makes; yields its URL."""
    base = free_port_base()
    process = subprocess.Popen([*command(write_package(folder)), "--port-base", str(base)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield f"http://127.0.0.1:{base}"
    finally:
        process.kill()
        process.communicate()


def behave(url: str, **rules: Any) -> None:
    request = urllib.request.Request(f"{url}/behave", json.dumps(rules).encode(), method="POST")
    urllib.request.urlopen(request, timeout=5).close()


def seen(url: str) -> int:
    """How many predictions the server got since it was told how to behave."""
    with urllib.request.urlopen(f"{url}/seen", timeout=60) as answer:
        return int(answer.read())


def sizes_seen(url: str) -> dict[str, int]:
    """How many predictions the server got for each size of body."""
    with urllib.request.urlopen(f"{url}/sizes", timeout=5) as answer:
        return dict(json.load(answer))
