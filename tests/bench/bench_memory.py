"""The worst pictures that a spec permits, against a pod's memory limit: whether anything is killed.

    python tests/bench/bench_memory.py [--requests 1000] [--limit-mb 2048] [--clients 8]

ResNet-50 is served by two workers in a memory cgroup of its own, as a pod is. The largest picture of each form that it
answers with 200 is found first, then all of them are sent, several at a time. Exit code 1 when the kernel killed a
process, a worker was replaced, or an answer was neither 200 nor the 503 of a full queue. A memory cgroup is needed.
"""

import argparse
import base64
import collections
import http.client
import io
import itertools
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from running import Running, running  # noqa: E402

from marina.config.load import parse_spec  # noqa: E402
from marina.config.progress import Progress  # noqa: E402

SPEC = """
name: pictures
model: {source: "torchvision:resnet50", weights: random, compile: export, batch_sizes: [1, 4]}
serving: {workers: 2, threads: 1, drain_propagation_s: 0, response_timeout_s: 120}
"""
# Pixels to begin the search with, more than is permitted.
FORMS = {"webp": 16e6, "png": 40e6, "png, 16 bit": 40e6, "progressive jpeg": 60e6, "jpeg": 41e6}
CGROUPS = Path("/sys/fs/cgroup")


class MemoryGroup:
    """A memory cgroup, of version 1 or 2: who joins it shares its limit."""

    def __init__(self, limit_mb: int) -> None:
        first = CGROUPS / "memory"
        self._old = first.is_dir()
        self._folder = (first if self._old else CGROUPS) / f"marina-bench-{os.getpid()}"
        self._folder.mkdir()
        limit = "memory.limit_in_bytes" if self._old else "memory.max"
        (self._folder / limit).write_text(str(limit_mb * 1024**2))

    def join(self) -> None:
        (self._folder / "cgroup.procs").write_text("0")

    def leave(self) -> None:
        (self._folder.parent / "cgroup.procs").write_text("0")

    def peak_mb(self) -> float:
        name = "memory.max_usage_in_bytes" if self._old else "memory.peak"
        return int((self._folder / name).read_text()) / 1024**2

    def kills(self) -> int:
        name = "memory.oom_control" if self._old else "memory.events"
        counts = dict(line.split() for line in (self._folder / name).read_text().splitlines())
        return int(counts["oom_kill"])

    def remove(self) -> None:
        self._folder.rmdir()


@contextmanager
def memory_group(limit_mb: int) -> Iterator[MemoryGroup]:
    group = MemoryGroup(limit_mb)
    try:
        yield group
    finally:
        group.remove()


def picture(form: str, pixels: float) -> bytes:
    """A flat picture, as small as a body as it can be: what counts is what it takes when it is decoded."""
    side = int(pixels**0.5)
    flat = Image.new("I;16" if "16" in form else "RGB", (side, side), 40_000 if "16" in form else (90, 20, 60))
    options: dict[str, object] = {"lossless": True} if form == "webp" else {}
    if "jpeg" in form:
        options = {"quality": 50, "progressive": "progressive" in form}
    buffer = io.BytesIO()
    flat.save(buffer, form.split(",")[0].split()[-1], **options)
    return buffer.getvalue()


def others() -> Iterator[tuple[str, bytes, str]]:
    """Large bodies: noise in base64, and the input as numbers with as many digits as fit."""
    noise = io.BytesIO()
    Image.fromarray(np.random.default_rng(1).integers(0, 255, (1500, 1600, 3), np.uint8)).save(noise, "png")
    text = base64.b64encode(noise.getvalue()).decode()
    yield "png in base64", json.dumps({"image": text}).encode(), "application/json"
    numbers = f"[{','.join(['0.' + '0' * 55] * (3 * 224 * 224))}]"
    yield "numbers", b'{"image": ' + numbers.encode() + b"}", "application/json"


def send(server: Running, body: bytes, content_type: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", server.ports.inference, timeout=300)
    try:
        connection.request("POST", "/predictions/pictures", body, {"Content-Type": content_type})
        answer = connection.getresponse()
        answer.read()
        return answer.status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def worst(server: Running) -> list[tuple[str, bytes, str]]:
    """The largest body of each form that is answered."""
    bodies = []
    for form, pixels in FORMS.items():
        content_type = f"image/{form.split(',')[0].split()[-1]}"
        while send(server, body := picture(form, pixels), content_type) != 200:
            pixels *= 0.93
        bodies.append((f"{form} of {pixels / 1e6:.1f} million pixels", body, content_type))
    return bodies + [other for other in others() if send(server, other[1], other[2]) == 200]


def main() -> int:
    """Prints the bodies, then one line of what came of them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--limit-mb", type=int, default=2048)
    parser.add_argument("--clients", type=int, default=8)
    arguments = parser.parse_args()
    from marina.archiver.package import package

    with tempfile.TemporaryDirectory(prefix="bench-memory-") as name, memory_group(arguments.limit_mb) as group:
        spec = parse_spec(SPEC, Path(name) / "spec.yaml")
        packed = package(spec, Path(name) / "build", progress=Progress(quiet=True))
        group.join()
        with running(spec, mar=Path(name) / "build" / packed.mar, log=Path(name) / "server.log") as server:
            group.leave()
            bodies = worst(server)
            for form, body, _ in bodies:
                print(f"{form}: {len(body):,} bytes", flush=True)
            turns = itertools.islice(itertools.cycle(bodies), arguments.requests)
            with ThreadPoolExecutor(arguments.clients) as clients:
                statuses = collections.Counter(clients.map(lambda each: send(server, each[1], each[2]), turns))
            lines = server.get("/metrics")[1].splitlines()
            restarts = sum(
                float(line.split()[-1]) for line in lines if line.startswith("marina_worker_restarts_total{")
            )
        # The peak has what the kernel keeps of files, which it gives back before it kills.
        print(
            f"{arguments.requests} requests, {arguments.clients} at a time, in {arguments.limit_mb} MiB: "
            + ", ".join(f"{status}: {count}" for status, count in sorted(statuses.items()))
            + f"; {group.kills()} kills, {restarts:.0f} workers replaced, peak {group.peak_mb():.0f} MiB with files"
        )
        return 1 if group.kills() or restarts or set(statuses) - {200, 503} else 0


if __name__ == "__main__":
    sys.exit(main())
