"""Hostile bodies and streams against served models, again and again: what broke, and what stayed.

    python tests/bench/bench_attack.py [--bodies 3400] [--streams 300] [--passes 3] [--seed 1]

Image, tensor, a handler of the user's own, an encoder and a language model, each packaged without compiling and
served on this machine. A pass sends the bodies and the streams; a valid sample in between must be answered as before,
to the bit. The next pass sends the same again, and what the workers' memory and the server's files have grown by over
the last is what one more would add. Exit code 1 when a worker died, a sample was answered otherwise, a status came that
must not, memory or files grew by more than 5 % over the last pass, an answer that nobody waits for kept its slot, or a
request left more than a line in the log.
"""

import argparse
import collections
import http.client
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests/e2e"), str(HERE), str(HERE / "attack")]

from attack_bodies import bodies  # noqa: E402
from attack_streams import streams  # noqa: E402
from attack_texts import COMPLETIONS, encoder_bodies, streamed, text_bodies  # noqa: E402
from running import Running, running  # noqa: E402

from marina.config.load import load_spec, parse_spec  # noqa: E402
from marina.config.progress import Progress  # noqa: E402
from marina.config.spec import Spec  # noqa: E402

# 503 of a full queue, 504 and 507 are documented; every other 5xx is a fault.
FAULTS = {500, 501, 502, 505}
SAMPLE_EVERY, CLIENTS, TIMEOUT_S = 25, 4, 60
# Most of their time goes into waiting for answers that do not come.
STREAM_CLIENTS = 32
# What a second pass may add, and files that come and go with a request.
GROWTH, COMING_AND_GOING_BYTES = 1.05, 1_000_000
LOG_LINE_BYTES = 500
# Streams whose client leaves, or stays and reads nothing, in a pass; so many are open at once.
LEFT, OPEN = 60, 12
SLOTS_S = 60
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
from marina.handlers.base import Handler
from marina.handlers.request import Answer
class Bytes(Handler):
    def decode(self, request):
        return [np.frombuffer(bytes(request.body[:64]).ljust(64), np.uint8).astype(np.float32)]
    def encode(self, outputs, request):
        return Answer(str(int(outputs[0].argmax())).encode(), "text/plain")
"""
EXAMPLES = {"language": ROOT / "config/examples/language/spec.yaml", "tales": ROOT / "config/examples/tales/spec.yaml"}
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
    if kind in EXAMPLES:
        spec = load_spec(EXAMPLES[kind])
        compiled = {"compile": "export", "precision": "fp32"} if kind == "language" else {}
        serving = {"drain_propagation_s": 0}
        changed = {"model": spec.model.model_copy(update=compiled), "serving": spec.serving.model_copy(update=serving)}
        copy = spec.model_copy(update=changed)
        copy._file = spec.file
        return copy
    (folder / "model.py").write_text(MODEL, encoding="utf-8")
    (folder / "own.py").write_text(OWN, encoding="utf-8")
    text = f"name: {kind}\nmodel:\n  source: ./model.py:build\n  weights: random\n  compile: export\n"
    text += HANDLERS[kind] + "serving: {workers: 2, threads: 1, drain_propagation_s: 0}\n"
    return parse_spec(text, folder / "spec.yaml")


def requests(kind: str, sample: bytes, arguments: argparse.Namespace) -> Iterator[tuple[str, bytes, str]]:
    """The rest of the path, the body and its declared type."""
    count, seed = arguments.bodies, arguments.seed
    if kind == "language":
        own = [("", body, "application/json") for body in encoder_bodies()]
    elif kind == "tales":
        half = min(count // 2, 2000)
        own = [(path, body, "application/json") for path, body in text_bodies(half, seed)]
        # Every kind of field once, however few bodies were asked for.
        own = own if count >= 2 * len(own) else own[:: max(1, 2 * len(own) // count)]
    else:
        own = []
    yield from own
    yield from (("", body, declared) for body, declared in bodies(max(100, count - len(own)), seed, [sample]))


def send(server: Running, body: bytes, content_type: str, path: str = "") -> tuple[int, bytes]:
    """Status and answer; status 0 when the connection broke."""
    connection = http.client.HTTPConnection("127.0.0.1", server.ports.inference, timeout=TIMEOUT_S)
    try:
        headers = {"Content-Type": content_type} if content_type else {}
        connection.request("POST", predictions(server) + path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


def predictions(server: Running) -> str:
    """Where the model answers; a language model's pages lie below its version."""
    of_version = f"/{server.spec.version}" if server.spec.name == "tales" else ""
    return f"/predictions/{server.spec.name}{of_version}"


def told(answer: tuple[int, bytes]) -> tuple[int, object]:
    """What of an answer is the same every time: a language model's has an id and the time."""
    status, body = answer
    try:
        return status, json.loads(body)["choices"]
    except (ValueError, LookupError, TypeError):
        return answer


def leave(server: Running, number: int) -> None:
    """Asks for a long answer in pieces and goes: at once, after some of it, or without having read any for a while."""
    body = streamed(200)
    head = f"POST {predictions(server)}{COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    try:
        with socket.create_connection(("127.0.0.1", server.ports.inference), timeout=TIMEOUT_S) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            if number % 3 == 1:
                connection.recv(500)
            elif number % 3 == 2:
                time.sleep(1)
    except OSError:
        return


def has_free_slots(server: Running) -> bool:
    """Whether nothing is written that nobody waits for, after a while."""
    until = time.monotonic() + SLOTS_S
    while sum(values(server, "inference_sequences")):
        if time.monotonic() > until:
            return False
        time.sleep(0.2)
    return True


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


def one_pass(server: Running, sample: tuple[bytes, str], expected: object, arguments: argparse.Namespace) -> Pass:
    """Sends everything once."""
    seen, log_before = Pass(), server.log.stat().st_size

    def attack(numbered: tuple[int, tuple[str, bytes, str]]) -> tuple[int, str, bool]:
        index, (path, body, content_type) = numbered
        status, answer = send(server, body, content_type, path)
        kind = f"{status} to `{content_type}`: {body[:60]!r}: {answer[:60].decode(errors='replace')!r}"
        return status, kind, index % SAMPLE_EVERY == 0 and told(send(server, *sample)) != expected

    name = server.spec.name
    with ThreadPoolExecutor(CLIENTS) as clients:
        for status, kind, wrong in clients.map(attack, enumerate(requests(name, sample[0], arguments))):
            seen.statuses[status] += 1
            seen.faults[kind] += status in FAULTS
            seen.wrong_samples += wrong
    with ThreadPoolExecutor(STREAM_CLIENTS) as clients:
        path = predictions(server)
        list(clients.map(lambda data: stream(server, data), streams(arguments.streams, arguments.seed, path)))
    if name == "tales":
        with ThreadPoolExecutor(OPEN) as clients:
            list(clients.map(lambda number: leave(server, number), range(LEFT)))
        seen.faults["slots are held for clients that left"] += not has_free_slots(server)
    seen.wrong_samples += told(send(server, *sample)) != expected
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
    from marina.archiver.package import package

    with tempfile.TemporaryDirectory(prefix="attack-") as name:
        folder, temporary = Path(name), Path(name) / "tmp"
        temporary.mkdir()
        spec = spec_of(kind, folder)
        packed = package(spec, folder / "build", progress=Progress(quiet=True))
        mar = folder / "build" / packed.mar
        tempfile.tempdir = str(temporary)
        with running(spec, mar=mar, log=folder / "server.log", environment={"TMPDIR": str(temporary)}) as server:
            sample = (folder_sample(mar, packed.record.sample.file), packed.record.sample.content_type)
            expected = told(send(server, *sample))
            if expected[0] != 200:
                raise SystemExit(f"{kind}: the sample was answered with {expected[0]}")
            passes = [one_pass(server, sample, expected, arguments) for _ in range(arguments.passes)]
        tempfile.tempdir = None
    return report(kind, passes)


def report(kind: str, passes: list[Pass]) -> bool:
    """Prints what all passes saw; whether all held."""
    statuses = sum((each.statuses for each in passes), collections.Counter[int]())
    all_faults = sum((each.faults for each in passes), collections.Counter[str]())
    wrong, faults = sum(each.wrong_samples for each in passes), sum(all_faults.values())
    log_bytes = sum(each.log_bytes for each in passes) / statuses.total()
    before, after = passes[-2:]
    kinds = (("memory", before.memory_bytes, after.memory_bytes), ("disk", before.disk_bytes, after.disk_bytes))
    grown = [what for what, was, now in kinds if now > was * GROWTH + COMING_AND_GOING_BYTES]
    print(f"{kind}: " + ", ".join(f"{code}: {statuses[code]}" for code in sorted(statuses)))
    print(
        f"  faults {faults}, worker restarts {after.restarts}, wrong samples {wrong}, "
        f"memory {' → '.join(f'{each.memory_bytes / 1e6:.0f}' for each in passes)} MB, "
        f"disk {' → '.join(f'{each.disk_bytes / 1e6:.1f}' for each in passes)} MB, "
        f"log {log_bytes:.0f} bytes a request" + "".join(f", {what} grew" for what in grown),
        flush=True,
    )
    for fault, count in all_faults.most_common(10):
        if count:
            print(f"  {count} × {fault}", flush=True)
    return not (faults or after.restarts or wrong or grown or log_bytes > LOG_LINE_BYTES)


def folder_sample(mar: Path, name: str) -> bytes:
    import zipfile

    with zipfile.ZipFile(mar) as archive:
        return archive.read(name)


def main() -> int:
    """Prints two lines a handler."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bodies", type=int, default=3400, choices=range(100, 20_001), metavar="100-20000")
    parser.add_argument("--streams", type=int, default=300, choices=range(20, 2001), metavar="20-2000")
    parser.add_argument("--passes", type=int, default=3, choices=range(2, 21), metavar="2-20")
    parser.add_argument("--seed", type=int, default=1)
    kinds = [*HANDLERS, *EXAMPLES]
    parser.add_argument("--handlers", nargs="+", default=kinds, choices=kinds)
    arguments = parser.parse_args()
    held = [attack(kind, arguments) for kind in arguments.handlers]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
