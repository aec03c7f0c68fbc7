"""TorchServe as it comes, without Marina, and archives for it."""

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

from running import Running

from marina.config.ports import free_port_base
from marina.server.java.checks import find_java


@dataclass(frozen=True)
class Stock:
    """A started TorchServe."""

    inference: int
    metrics: int

    def page(self) -> str:
        """Its metrics."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics}/metrics", timeout=60) as answer:
            return str(answer.read().decode())


def make_archive(folder: Path, handler: Path, *, name: str, version: str, config: str = "") -> Path:
    """An archive as `torch-model-archiver` makes it."""
    file = folder / f"{name}.mar"
    options = ["--model-name", name, "--version", version, "--handler", str(handler), "--export-path", str(folder)]
    if config:
        (folder / "model-config.yaml").write_text(config, encoding="utf-8")
        options += ["--config-file", str(folder / "model-config.yaml")]
    subprocess.run([Path(sys.executable).with_name("torch-model-archiver"), "--force", *options], check=True)
    assert ZipFile(file).namelist()
    return file


@contextmanager
def stock_server(
    archive: Path, folder: Path, *, properties: str = "", environment: Mapping[str, str] | None = None
) -> Iterator[Stock]:
    """Started as its own script does it, and ready when entered."""
    base, origin = free_port_base(), find_spec("ts")
    assert origin
    assert origin.origin
    site = Path(origin.origin).parent.parent
    inference, management, metrics, grpc, more = range(base, base + 5)
    (folder / "config.properties").write_text(
        f"inference_address=http://127.0.0.1:{inference}\nmanagement_address=http://127.0.0.1:{management}\n"
        f"metrics_address=http://127.0.0.1:{metrics}\ngrpc_inference_port={grpc}\ngrpc_management_port={more}\n"
        f"disable_token_authorization=true\ndefault_workers_per_model=1\n{properties}"
    )
    temporary = folder / "tmp"
    temporary.mkdir()
    java = [str(find_java().executable), f"-Dmodel_server_home={site}", f"-Djava.io.tmpdir={temporary}"]
    command = [*java, "-XX:TieredStopAtLevel=1", "-cp", f"{site}/ts/frontend/*", "org.pytorch.serve.ModelServer"]
    command += ["--python", sys.executable, "-f", str(folder / "config.properties"), "-s", str(archive.parent)]
    places = {name: str(folder) for name in ("LOG_LOCATION", "METRICS_LOCATION")} | {"TMPDIR": str(temporary)}
    with (folder / "stock.log").open("wb") as log:
        server = subprocess.Popen(
            [*command, "-ncs", "-m", archive.name],
            env={**os.environ, **places, **(environment or {})},
            cwd=folder,
            stdout=log,
            stderr=log,
        )
        try:
            _wait(server, f"http://127.0.0.1:{management}/models/{archive.stem}")
            yield Stock(inference, metrics)
        finally:
            server.terminate()
            server.wait(30)


def _wait(server: subprocess.Popen[bytes], model: str) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(model, timeout=10) as answer:
                if b'"READY"' in answer.read():
                    return
        except OSError:
            pass
        time.sleep(0.05)
    raise AssertionError("TorchServe did not start")


def port_of(server: Running | Stock) -> int:
    """The port of inference."""
    return server.inference if isinstance(server, Stock) else server.ports.inference
