"""TorchServe by itself, with a model store and its own defaults: what an adopted archive is compared with."""

import http.client
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from old_archives import Asked
from specs import ROOT
from waiting import eventually

from marina.config.machine import torchserve_home
from marina.config.ports import free_port_base
from marina.server.java.checks import find_java

# Lets workers import a torchvision whose binaries do not fit the installed torch.
_SHIM = ROOT / "tests" / "bench" / "stock"


@dataclass(frozen=True)
class Answer:
    status: int
    reason: str
    content_type: str | None
    own_header: str | None
    body: bytes


def ask(port: int, name: str, asked: Asked, timeout_s: float = 60) -> Answer:
    """The answer to a request."""
    path = asked.path.format(name=name) if "{name}" in asked.path else f"/predictions/{name}{asked.path}"
    headers = {"X-Of": "the client"} | ({"Content-Type": asked.content_type} if asked.content_type else {})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request(asked.method, path, asked.body or None, headers)
        answer = connection.getresponse()
        kind, own = answer.getheader("content-type"), answer.getheader("x-asked")
        return Answer(answer.status, answer.reason, kind, own, answer.read())
    finally:
        connection.close()


@contextmanager
def stock_server(
    store: Path, names: list[str], properties: str = "", environment: Mapping[str, str] | None = None
) -> Iterator[int]:
    """The port of a TorchServe with every archive in a folder, once all their workers are ready; its metrics are two
    ports further."""
    with stock_process(store, names, properties, environment) as (port, _):
        yield port


@contextmanager
def stock_process(
    store: Path, names: list[str], properties: str = "", environment: Mapping[str, str] | None = None
) -> Iterator[tuple[int, "subprocess.Popen[bytes]"]]:
    """The port of such a server, and its process."""
    base, site, java = free_port_base(), torchserve_home(), find_java()
    ports = {"inference": base, "management": base + 1, "metrics": base + 2}
    lines = [f"{name}_address=http://127.0.0.1:{port}\n" for name, port in ports.items()]
    lines += [f"grpc_inference_port={base + 3}\ngrpc_management_port={base + 4}\n"]
    lines += ["disable_token_authorization=true\ndefault_workers_per_model=1\nload_models=all\n", properties]
    with tempfile.TemporaryDirectory(prefix="stock-") as scratch, (store.parent / "stock.log").open("wb") as log:
        folder = Path(scratch)
        (folder / "config.properties").write_text("".join(lines), encoding="utf-8")
        command = [str(java.executable), f"-Dmodel_server_home={site}", f"-Djava.io.tmpdir={folder}"]
        command += ["-Xmx1g", "-XX:TieredStopAtLevel=1", "-cp", f"{site}/ts/frontend/*"]
        command += [
            "org.pytorch.serve.ModelServer",
            "--python",
            sys.executable,
            "-f",
            str(folder / "config.properties"),
        ]
        command += ["-s", str(store), "-ncs"]
        given = os.environ | {
            "TEMP": scratch,
            "LOG_LOCATION": scratch,
            "METRICS_LOCATION": scratch,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": f"{_SHIM}{os.pathsep}{ROOT}",
        }
        given |= environment or {}
        process = subprocess.Popen(command, cwd=folder, env=given, stdout=log, stderr=subprocess.STDOUT)
        try:
            eventually(
                lambda: process.poll() is None and all(_is_ready(base + 1, name) for name in names), within_s=400
            )
            yield base, process
        finally:
            process.terminate()
            process.wait(30)


def _is_ready(port: int, name: str) -> bool:
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", f"/models/{name}")
        answer = connection.getresponse()
        described = json.loads(answer.read())
        return answer.status == 200 and all(worker["status"] == "READY" for worker in described[0]["workers"])
    except (OSError, ValueError):
        return False
