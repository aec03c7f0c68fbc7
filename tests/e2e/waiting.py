"""Awaiting conditions, metrics by name, processes of a server, and the digits' requests."""

import functools
import io
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import numpy as np
import psutil
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from running import Running
from specs import ROOT

from marina.server.system.processes import identify

T = TypeVar("T")
DIGIT = (ROOT / "config/examples/digits/samples/3.png").read_bytes()


def eventually(check: Callable[[], T], *, within_s: float = 120) -> T:
    """The first true answer of `check`; fails with its last one."""
    deadline = time.monotonic() + within_s
    while not (answer := check()):
        assert time.monotonic() < deadline, f"still {answer!r} after {within_s} s"
        time.sleep(0.02)
    return answer


def samples(server: Running) -> list[Sample]:
    """All samples of the metrics' page as it is now."""
    status, page = server.get("/metrics")
    assert status == 200, (status, page)
    return [sample for family in text_string_to_metric_families(page) for sample in family.samples]


def total(page: Iterable[Sample], name: str, **labels: str) -> float:
    """The sum of a metric's samples with these labels."""
    return sum(sample.value for sample in page if sample.name == name and labels.items() <= sample.labels.items())


def metric(server: Running, name: str, **labels: str) -> float:
    """The sum of a metric's samples with these labels, of the page as it is now."""
    return total(samples(server), name, **labels)


def ask(server: Running, body: bytes, content_type: str = "application/json", *, timeout_s: float = 60) -> int:
    """The status of one inference; 0 when the connection broke."""
    request = urllib.request.Request(
        f"{server.url}/predictions/{server.spec.name}", body, {"Content-Type": content_type}
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            return answer.status
    except urllib.error.HTTPError as err:
        return err.code
    except OSError:
        return 0


def held_out_images() -> tuple[np.ndarray, np.ndarray]:
    """The quarter of the digits that train.py did not train on, and what each is."""
    # Slow to import, and every run of the tests collects the files that import this one.
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    pixels = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    parts = train_test_split(pixels, digits.target, test_size=0.25, random_state=0, stratify=digits.target)
    return parts[1][..., None], parts[3]


@functools.cache
def scan(side: int) -> bytes:
    """The digit as a scanner gives it, a PNG of `side` × `side` pixels: on one core 512 take some 10 ms to decode, 1024
    some 30, 2048 some 100. That makes real work of a model that answers its own 8 × 8 pixels in no time."""
    file = io.BytesIO()
    with Image.open(io.BytesIO(DIGIT)) as digit:
        digit.resize((side, side), Image.Resampling.BICUBIC).save(file, "PNG")
    return file.getvalue()


def children(pid: int) -> list[int]:
    """The processes that a process has started, those that have ended and are not reaped included."""
    return [child.pid for child in psutil.Process(pid).children()]


def java_pid(server: Running) -> int:
    """TorchServe's process; beside it the supervisor may have what a dead worker has left, for a moment."""
    found = [pid for pid in children(server.process.pid) if identify(pid)]
    (pid,) = [pid for pid in found if Path(f"/proc/{pid}/comm").read_text() == "java\n"]
    return pid


def worker_pids(server: Running) -> list[int]:
    """TorchServe's workers, those that run."""
    return [pid for pid in children(java_pid(server)) if identify(pid)]
