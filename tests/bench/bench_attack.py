"""Hostile bodies and streams against served models, twice over: what broke, and what stayed.

    python tests/bench/bench_attack.py [--bodies 3400] [--streams 300] [--seed 1]

Three handlers, image, tensor and one of the user's own, each packaged without compiling and served on this machine. A
pass sends the bodies and the streams; a valid sample in between must be answered as before, to the bit. The second pass
sends the same again, and what the workers' memory and the server's files have grown by over it is what a third would
add. Exit code 1 when a worker died, a sample was answered otherwise, a status came that must not, memory or files grew
by more than 5 % over the second pass, or a request left more than a line in the log.
"""

from __future__ import annotations

import argparse
import collections
import http.client
import os
import socket
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(HERE)]

from attack_corpus import bodies, streams  # noqa: E402
from running import Running, running  # noqa: E402

from config.load import parse_spec  # noqa: E402
from config.progress import Progress  # noqa: E402
from config.spec import Spec  # noqa: E402

# 503 of a full queue, 504 and 507 are documented; every other 5xx is a fault.
FAULTS = {500, 501, 502, 505}
SAMPLE_EVERY, CLIENTS, TIMEOUT_S = 25, 4, 60
# Most of their time goes into waiting for answers that do not come.
STREAM_CLIENTS = 32
# What a second pass may add, and files that come and go with a request.
GROWTH, COMING_AND_GOING_BYTES = 1.05, 1_000_000
LOG_LINE_BYTES = 500
IMAGE = "image: {height: 8, width: 8, channels: 1}"
MODEL = """import torch
class Flat(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(64, 10)
    def forward(self, x):
        return self.linear(x.flatten(1))
def build():
    return Flat()
"""
OWN = """import numpy as np
from handlers.base import Handler
from handlers.request import Answer
class Bytes(Handler):
    def decode(self, request):
        return [np.frombuffer(bytes(request.body[:64]).ljust(64), np.uint8).astype(np.float32)]
    def encode(self, outputs, request):
        return Answer(str(int(outputs[0].argmax())).encode(), "text/plain")
"""
HANDLERS = {
    "image": f"  handler: image\n  {IMAGE}\n",
    "tensor": "  handler: tensor\n  inputs: {x: {shape: [64]}}\n",
    "own": "  handler: ./own.py:Bytes\n  inputs: {x: {shape: [64]}}\n",
}


@dataclass
class Pass:
    """What one pass saw, and what it left."""

    statuses: collections.Counter[int] = field(default_factory=collections.Counter)
    faults: collections.Counter[str] = field(default_factory=collections.Counter)
    """By the type that was declared and the answer's first words."""
    wrong_samples: int = 0
    memory_bytes: int = 0
    disk_bytes: int = 0
    log_bytes: int = 0
    restarts: int = 0


def spec_of(kind: str, folder: Path) -> Spec:
    (folder / "model.py").write_text(MODEL, encoding="utf-8")
    (folder / "own.py").write_text(OWN, encoding="utf-8")
    text = f"name: {kind}\nmodel:\n  source: ./model.py:build\n  weights: random\n  compile: export\n"
    text += HANDLERS[kind] + "serving: {workers: 2, threads: 1, drain_propagation_s: 0}\n"
    return parse_spec(text, folder / "spec.yaml")


def send(server: Running, body: bytes, content_type: str) -> tuple[int, bytes]:
    """Status and answer; status 0 when the connection broke."""
    connection = http.client.HTTPConnection("127.0.0.1", server.ports.inference, timeout=TIMEOUT_S)
    try:
        headers = {"Content-Type": content_type} if content_type else {}
        connection.request("POST", f"/predictions/{server.spec.name}", body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


def stream(server: Running, data: bytes) -> None:
    """Sends raw bytes and reads for a moment."""
    with socket.create_connection(("127.0.0.1", server.ports.inference), timeout=TIMEOUT_S) as connection:
        connection.settimeout(0.3)
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass
        except OSError:
            return


def one_pass(server: Running, sample: tuple[bytes, str], expected: bytes, arguments: argparse.Namespace) -> Pass:
    """Sends everything once."""
    seen, log_before = Pass(), server.log.stat().st_size

    def attack(numbered: tuple[int, tuple[bytes, str]]) -> tuple[int, str, bool]:
        index, (body, content_type) = numbered
        status, answer = send(server, body, content_type)
        kind = f"{status} to `{content_type}`: {answer[:60].decode(errors='replace')!r}"
        return status, kind, index % SAMPLE_EVERY == 0 and send(server, *sample) != (200, expected)

    with ThreadPoolExecutor(CLIENTS) as clients:
        for status, kind, wrong in clients.map(
            attack, enumerate(bodies(arguments.bodies, arguments.seed, [sample[0]]))
        ):
            seen.statuses[status] += 1
            seen.faults[kind] += status in FAULTS
            seen.wrong_samples += wrong
    path = f"/predictions/{server.spec.name}"
    with ThreadPoolExecutor(STREAM_CLIENTS) as clients:
        list(clients.map(lambda data: stream(server, data), streams(arguments.streams, arguments.seed, path)))
    seen.wrong_samples += send(server, *sample) != (200, expected)
    seen.log_bytes = server.log.stat().st_size - log_before
    seen.restarts = int(sum(values(server, "marina_worker_restarts_total")))
    seen.memory_bytes = int(sum(values(server, "marina_worker_resident_memory_bytes")))
    seen.disk_bytes = files_under_temporary()
    return seen


def values(server: Running, name: str) -> list[float]:
    lines = server.get("/metrics")[1].splitlines()
    return [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name + "{")]


def files_under_temporary() -> int:
    """Bytes under the server's own directory."""
    parent = Path(tempfile.gettempdir())
    owned = [Path(base) / name for base, _, names in os.walk(parent) for name in names]
    return sum(file.lstat().st_blocks * 512 for file in owned if file.exists())


def attack(kind: str, arguments: argparse.Namespace) -> bool:
    """Serves one handler, attacks it and prints its line; whether all held."""
    from archiver.package import package

    with tempfile.TemporaryDirectory(prefix="attack-") as name:
        folder, temporary = Path(name), Path(name) / "tmp"
        temporary.mkdir()
        spec = spec_of(kind, folder)
        packed = package(spec, folder / "build", progress=Progress(quiet=True))
        mar = folder / "build" / packed.mar
        tempfile.tempdir = str(temporary)
        with running(spec, mar=mar, log=folder / "server.log", environment={"TMPDIR": str(temporary)}) as server:
            sample = (folder_sample(mar, packed.record.sample.file), packed.record.sample.content_type)
            status, expected = send(server, *sample)
            if status != 200:
                raise SystemExit(f"{kind}: the sample was answered with {status}")
            first, second = (one_pass(server, sample, expected, arguments) for _ in range(2))
        tempfile.tempdir = None
    statuses = first.statuses + second.statuses
    faults = sum(statuses[code] for code in FAULTS)
    wrong, total = first.wrong_samples + second.wrong_samples, 2 * (arguments.bodies + arguments.streams)
    log_bytes = (first.log_bytes + second.log_bytes) / total
    grown = [
        what
        for what, before, after in (
            ("memory", first.memory_bytes, second.memory_bytes),
            ("disk", first.disk_bytes, second.disk_bytes),
        )
        if after > before * GROWTH + COMING_AND_GOING_BYTES
    ]
    print(f"{kind}: " + ", ".join(f"{code}: {statuses[code]}" for code in sorted(statuses)))
    print(
        f"  faults {faults}, worker restarts {second.restarts}, wrong samples {wrong}, "
        f"memory {first.memory_bytes / 1e6:.0f} → {second.memory_bytes / 1e6:.0f} MB, "
        f"disk {first.disk_bytes / 1e6:.1f} → {second.disk_bytes / 1e6:.1f} MB, "
        f"log {log_bytes:.0f} bytes a request" + "".join(f", {what} grew" for what in grown),
        flush=True,
    )
    for kind, count in (first.faults + second.faults).most_common(10):
        print(f"  {count} × {kind}", flush=True)
    return not (faults or second.restarts or wrong or grown or log_bytes > LOG_LINE_BYTES)


def folder_sample(mar: Path, name: str) -> bytes:
    import zipfile

    with zipfile.ZipFile(mar) as archive:
        return archive.read(name)


def main() -> int:
    """Prints two lines a handler."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bodies", type=int, default=3400, choices=range(100, 20_001), metavar="100-20000")
    parser.add_argument("--streams", type=int, default=300, choices=range(20, 2001), metavar="20-2000")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--handlers", nargs="+", default=list(HANDLERS), choices=list(HANDLERS))
    arguments = parser.parse_args()
    held = [attack(kind, arguments) for kind in arguments.handlers]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
