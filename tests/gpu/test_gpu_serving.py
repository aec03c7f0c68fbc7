"""What `device: cuda` promises, with a real GPU: `make check-gpu`. Skipped where there is none."""

import io
import json
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image
from running import Running, running
from specs import DIGITS, ROOT, changed
from tools import HAS_GPU
from waiting import eventually, held_out_images, metric, worker_pids

from marina.config.load import parse_spec
from marina.config.record import Package, read_package
from marina.config.spec import Spec

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not HAS_GPU, reason="no GPU"),
]

ON_GPU: dict[str, Any] = {"serving.device": "cuda", "kubernetes.resources.gpu": 1, "serving.drain_propagation_s": 0}
LANGUAGE = ROOT / "config/examples/language/spec.yaml"

# One row may ask for more memory than any GPU has, break the GPU's context, or be answered.
ODD_MODEL = """
import torch
from torch import nn


class Odd(nn.Module):
    def forward(self, gigabytes, index):
        wanted = int(gigabytes.max().clamp(min=0).item() * 2**30)
        taken = torch.zeros(wanted, dtype=torch.uint8, device=gigabytes.device).any()
        torch._assert_async((index < 100).all())
        return gigabytes + index + taken


def build():
    return Odd()
"""


def packaged(folder: Path, spec_file: Path, changes: dict[str, Any]) -> tuple[Spec, Package, Path]:
    """Packages a copy of a spec's folder with changes, by the command line; what it wrote."""
    shutil.copytree(spec_file.parent, folder / "model")
    file = folder / "model" / "spec.yaml"
    file.write_text(yaml.safe_dump(changed(ON_GPU | changes, yaml.safe_load(spec_file.read_text()))))
    command = [sys.executable, "-m", "marina", "package", str(file), "--out", str(folder / "build")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    spec = parse_spec(file.read_text(), file)
    out = folder / "build" / spec.name
    package = read_package(out)
    return spec, package, out / package.mar


@contextmanager
def served(folder: Path, spec: Spec, mar: Path) -> Iterator[Running]:
    """A server for it, which leaves nothing on the GPU."""
    with running(spec, mar=mar, log=folder / "server.log") as server:
        pids = worker_pids(server)
        assert set(pids) <= on_gpu() or not on_gpu()
        yield server
    assert server.process.returncode == 0, server.tail()
    eventually(lambda: not on_gpu() & set(pids), within_s=30)


def on_gpu() -> set[int]:
    """The processes that use the GPU; empty in a container, whose driver names none of them."""
    command = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return {int(pid) for pid in listed if pid.isdecimal()}


def answer(server: Running, body: bytes, content_type: str = "application/json") -> tuple[int, Any]:
    url = f"{server.url}/predictions/{server.spec.name}"
    request = urllib.request.Request(url, body, {"Content-Type": content_type})
    try:
        with urllib.request.urlopen(request, timeout=120) as got:
            return got.status, json.load(got)
    except urllib.error.HTTPError as err:
        return err.code, json.load(err)


def png(image: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image[..., 0]).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("compile_", "precision"),
    [
        ("aot", "fp32"),
        ("aot", "fp16"),
        ("aot", "bf16"),
        ("jit", "bf16"),
        ("export", "fp16"),
        ("eager", "bf16"),
    ],
)
def test_pictures_are_answered_right(compile_: str, precision: str, tmp_path: Path) -> None:
    changes = {"model.compile": compile_, "model.precision": precision}
    spec, package, mar = packaged(tmp_path, DIGITS, changes)
    record = package.record
    assert record.key.device == "cuda"
    assert record.agreement.agreement >= 0.98
    with served(tmp_path, spec, mar) as server, ThreadPoolExecutor(16) as clients:
        images, digits = held_out_images()
        answers = list(clients.map(lambda image: answer(server, png(image), "image/png"), images[:200]))
        assert {status for status, _ in answers} == {200}
        right = [body["top_indices"][0] == digit for (_, body), digit in zip(answers, digits[:200], strict=True)]
        assert sum(right) >= 197, right
        assert metric(server, "inference_worker_cuda_bytes") > 0


@pytest.mark.parametrize(
    "encoding", [{"max_tokens": 64, "buckets": "dynamic"}, {"max_tokens": 64, "buckets": [16, 64]}]
)
@pytest.mark.parametrize("compile_", ["aot", "jit"])
def test_texts_of_many_lengths_are_answered_right(compile_: str, encoding: dict[str, Any], tmp_path: Path) -> None:
    changes = {"model.compile": compile_, "model.precision": "bf16", "model.encoding": encoding | {"truncate": "right"}}
    spec, _, mar = packaged(tmp_path, LANGUAGE, changes)
    lines = (LANGUAGE.parent / "texts/held_out.tsv").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("\t") for line in lines]
    with served(tmp_path, spec, mar) as server, ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(lambda pair: answer(server, json.dumps({"text": pair[1]}).encode()), pairs))
    assert {status for status, _ in answers} == {200}
    right = [body["top_labels"][0] == label for (_, body), (label, _) in zip(answers, pairs, strict=True)]
    assert sum(right) >= 0.9 * len(right), right


@pytest.fixture(scope="module")
def odd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("odd")
    (folder / "own").mkdir()
    (folder / "own" / "model.py").write_text(ODD_MODEL)
    spec = {
        "name": "odd",
        "model": {
            "source": "./model.py:build",
            "weights": "random",
            "handler": "tensor",
            "compile": "eager",
            "inputs": {"gigabytes": {"shape": [1]}, "index": {"shape": [1]}},
            "batch_sizes": [1, 8],
        },
        "serving": {"max_batch_delay_ms": 100},
        "slo": {"p99_ms": 1000},
        "kubernetes": {"resources": {"cpu": "2"}},
    }
    (folder / "own" / "spec.yaml").write_text(json.dumps(spec))
    loaded, _, mar = packaged(folder, folder / "own" / "spec.yaml", {})
    with served(folder, loaded, mar) as server:
        yield server


def asked(server: Running, gigabytes: float, index: float = 0) -> tuple[int, Any]:
    return answer(server, json.dumps({"gigabytes": [gigabytes], "index": [index]}).encode())


def test_who_asks_for_too_much_memory_gets_507_and_its_neighbours_an_answer(odd_server: Running) -> None:
    workers = worker_pids(odd_server)
    with ThreadPoolExecutor(8) as clients:
        statuses = [code for code, _ in clients.map(lambda size: asked(odd_server, size), [0.5, 4000, 0.5, 0.5] * 4)]
    assert statuses == [200, 507, 200, 200] * 4
    assert worker_pids(odd_server) == workers
    assert odd_server.readiness()[0]


def test_a_gpu_that_fails_costs_its_worker_and_not_the_service(odd_server: Running) -> None:
    workers = worker_pids(odd_server)
    status, _ = asked(odd_server, 0.5, index=200)
    assert status in (500, 503)
    eventually(lambda: worker_pids(odd_server) not in ([], workers) and odd_server.readiness()[0], within_s=120)
    assert asked(odd_server, 0.5, index=2)[0] == 200


def test_a_server_that_sees_no_gpu_says_so(tmp_path: Path) -> None:
    spec, _, mar = packaged(tmp_path, DIGITS, {"model.compile": "export"})
    command = [sys.executable, "-m", "marina", "serve", str(spec.file), "--mar", str(mar), "--port-base", "19500"]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 5, done.stderr
    assert "GPU" in done.stderr
