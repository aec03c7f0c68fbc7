"""Servers of the same network for the same photo, and how each is started: Marina's, and TorchServe's own ways."""

import base64
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import process_tree
import yaml
from running import running

from marina.archiver.package import package
from marina.config.load import parse_spec
from marina.config.ports import free_port_base
from marina.config.progress import Progress
from marina.config.render import Ports
from marina.config.spec import Spec
from marina.loadtest.sending import LoadRequest
from marina.server.java.checks import find_java

ROOT = Path(__file__).resolve().parent.parent.parent
STOCK = Path(__file__).resolve().parent / "stock"
EXAMPLE = ROOT / "config" / "examples" / "resnet50" / "spec.yaml"
PHOTO = EXAMPLE.parent / "samples" / "harbour.jpg"
_START_S = 300.0


@dataclass(frozen=True)
class Started:
    """A server that has answered: the root of its processes, what to send, and how long it took to get there."""

    pid: int
    request: LoadRequest
    start_s: float


@dataclass(frozen=True)
class Contestant:
    """A named server; `start` is entered when it has answered, and left when it is gone."""

    name: str
    start: Any

    def __call__(self) -> AbstractContextManager[Started]:
        return self.start()


def photo_request(url: str) -> LoadRequest:
    """The photo as the whole body."""
    return LoadRequest(url=url, body=base64.b64encode(PHOTO.read_bytes()), content_type="image/jpeg")


def numbers_request(url: str) -> LoadRequest:
    """The photo as its client would send it to a handler that takes normalised numbers."""
    from marina.handlers.pictures import decode_image
    from marina.handlers.record import ImageSpec

    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    spec = ImageSpec(224, 224, 232, 3, mean, std, "bilinear", 5, 40_000_000)
    normalised = (decode_image(PHOTO.read_bytes(), spec) / 255 - mean) / std
    body = json.dumps({"image": normalised.transpose(2, 0, 1).ravel().tolist()}).encode()
    return LoadRequest(url=url, body=base64.b64encode(body), content_type="application/json")


def kit_spec(
    model: Mapping[str, Any],
    serving: Mapping[str, Any] | None = None,
    file: Path = EXAMPLE,
    *,
    resources: Mapping[str, Any] | None = None,
) -> Spec:
    """The example's spec with other values; what a start or a stop would wait for is not waited for."""
    data = yaml.safe_load(file.read_text(encoding="utf-8"))
    data["model"] |= model
    data["serving"] = {**data.get("serving", {}), "drain_propagation_s": 0, "access_log": "off", **(serving or {})}
    if resources is not None:
        data["kubernetes"] = {**data.get("kubernetes", {}), "resources": dict(resources)}
    return parse_spec(yaml.safe_dump(data, sort_keys=False), file)


def kit_mar(spec: Spec, folder: Path) -> Path:
    """The MAR of a spec, made where it is not there."""
    if not (folder / "model.mar").exists():
        package(spec, folder, progress=Progress())
    return folder / "model.mar"


def kit(
    name: str,
    spec: Spec,
    mar: Path,
    *,
    cores: set[int] | None = None,
    request: Callable[[str], LoadRequest] = photo_request,
) -> Contestant:
    """Marina's server for a package, on all cores or on some; `request` makes of an address what is sent there."""

    @contextmanager
    def start() -> Iterator[Started]:
        begin = time.monotonic()
        with ExitStack() as stack:
            with on_cores(cores):
                server = stack.enter_context(running(spec, mar=mar))
            took = time.monotonic() - begin
            yield Started(server.process.pid, request(f"{server.url}/predictions/{spec.name}"), took)

    return Contestant(name, start)


@contextmanager
def on_cores(cores: set[int] | None) -> Iterator[None]:
    """What is started inside runs on these cores only, as with `taskset`."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def command(
    name: str,
    words: Sequence[str],
    *,
    request: LoadRequest,
    environment: Mapping[str, str],
    folder: Path,
) -> Contestant:
    """A server that a command starts; it has started when it answers the request with 200."""

    @contextmanager
    def start() -> Iterator[Started]:
        begin = time.monotonic()
        with (folder / "server.log").open("wb") as log:
            process = subprocess.Popen(
                words, cwd=folder, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            _wait_for_answer(process, request, folder / "server.log")
            yield Started(process.pid, request, time.monotonic() - begin)
        finally:
            family = process_tree.tree(process.pid)
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process_tree.send(signal.SIGKILL, family)

    return Contestant(name, start)


def _wait_for_answer(process: subprocess.Popen[bytes], request: LoadRequest, log: Path) -> None:
    deadline = time.monotonic() + _START_S
    asked = urllib.request.Request(request.url, request.body, {"Content-Type": request.content_type})
    while True:
        try:
            with urllib.request.urlopen(asked, timeout=30):
                return
        except (OSError, urllib.error.HTTPError) as err:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no answer ({err}):\n{log.read_text(errors='replace')[-3000:]}") from err
        time.sleep(0.05)


def stock_mar(folder: Path, *, article: bool) -> Path:
    """TorchServe's own archive of the same network: TorchScript and `image_classifier`, or the article's handler."""
    import torch

    from marina.archiver.torchvision_import import import_torchvision

    mar = folder / "resnet50.mar"
    if mar.exists():
        return mar
    folder.mkdir(parents=True, exist_ok=True)
    import_torchvision()
    from torchvision.models import resnet50

    torch.manual_seed(0)
    network, file = resnet50().eval(), folder / "resnet50.pt"
    if article:
        torch.save(network.state_dict(), file)
        options = ["--extra-files", str(file), "--handler", str(STOCK / "article_handler.py")]
    else:
        torch.jit.trace(network, torch.rand(1, 3, 224, 224)).save(str(file))
        options = ["--serialized-file", str(file), "--handler", "image_classifier"]
    archiver = Path(sys.executable).with_name("torch-model-archiver")
    words = [str(archiver), "--model-name", "resnet50", "--version", "1.0", "--export-path", str(folder), *options]
    subprocess.run(words, check=True, capture_output=True)
    return mar


def stock(name: str, home: Path, *, article: bool = False, threads: int | None = None) -> Contestant:
    """TorchServe by its own command with its own defaults, and the article's two settings for its handler.

    Its defaults give each of its workers, one a core, a thread for every core, and these wait for each other in busy
    loops; `threads` is what an owner sets who knows that.
    """
    mar = stock_mar(home, article=article)
    return torchserve(
        name,
        mar,
        home / f"threads-{threads or 'default'}",
        request=numbers_request if article else photo_request,
        settings={"number_of_netty_threads": 32, "job_queue_size": 1000} if article else {},
        threads=threads,
    )


def torchserve(
    name: str,
    mar: Path,
    folder: Path,
    *,
    request: Callable[[str], LoadRequest],
    settings: Mapping[str, object],
    threads: int | None = None,
) -> Contestant:
    """TorchServe by its own command with an archive, which is called as its model, and further settings."""
    ports, model = Ports(free_port_base()), mar.stem
    folder.mkdir(exist_ok=True)
    lines = {
        "inference_address": f"http://127.0.0.1:{ports.inference}",
        "management_address": f"http://127.0.0.1:{ports.base + 1}",
        "metrics_address": f"http://127.0.0.1:{ports.base + 2}",
        "grpc_inference_port": ports.base + 3,
        "grpc_management_port": ports.base + 4,
        **settings,
    }
    (folder / "config.properties").write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    (folder / "tmp").mkdir(exist_ok=True)
    words = [str(Path(sys.executable).with_name("torchserve")), "--start", "--foreground", "--disable-token-auth"]
    words += ["--ncs", "--ts-config", str(folder / "config.properties"), "--model-store", str(mar.parent)]
    words += ["--models", f"{model}={mar.name}"]
    packages = ROOT / "build" / "bench-serve" / "stock-packages"
    environment = {
        "JAVA_HOME": str(find_java().executable.parent.parent),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(map(str, (STOCK, ROOT, packages))),
        "LOG_LOCATION": str(folder / "logs"),
        "METRICS_LOCATION": str(folder / "logs"),
        **({"OMP_NUM_THREADS": str(threads)} if threads else {}),
        "TEMP": str(folder / "tmp"),
        "TMPDIR": str(folder / "tmp"),
    }
    sent = request(f"http://127.0.0.1:{ports.inference}/predictions/{model}")
    return command(name, words, request=sent, environment=environment, folder=folder)
