"""Requests of many lengths: padded to buckets, as long as they are (`dynamic`), and padded to the largest, in turns.

    python tests/bench/lengths/bench_lengths.py [--compile export] [--seconds 60]

The lengths are those of the paragraphs of Python's own reference, in words, which every Python brings. The model is a
small encoder; the packages are of it and differ in their lengths only. Batches of eight requests go through the whole
handler, JSON included, through one after the other; every answer is compared with the others'.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "bench")]

import numpy as np  # noqa: E402
from board import against, ratio_text  # noqa: E402
from fakes import FakeContext, ask  # noqa: E402
from specs import make_spec  # noqa: E402

from marina.archiver.package import package  # noqa: E402
from marina.config.progress import Progress  # noqa: E402
from marina.handlers.tensor import TensorHandler  # noqa: E402

LONGEST, WORDS, BATCH = 256, 1000, 8
LENGTHS: dict[str, dict[str, Any]] = {
    "buckets": {"max": LONGEST, "buckets": [16, 32, 64, 128, LONGEST]},
    "dynamic": {"max": LONGEST, "buckets": "dynamic"},
    "largest": {"max": LONGEST, "buckets": [LONGEST]},
}
MODEL = f"""
import torch
from torch import nn

class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding({WORDS}, 128)
        layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(128, 4)

    def forward(self, ids, mask):
        states = self.layers(self.embed(ids), src_key_padding_mask=mask == 0)
        weights = mask.to(states.dtype).unsqueeze(-1)
        return self.head((states * weights).sum(1) / weights.sum(1))

def build():
    return Encoder()
"""


def lengths() -> list[int]:
    """Words of each paragraph, the longest cut."""
    paragraphs = [part for text in topics.values() for part in text.split("\n\n")]
    return [min(LONGEST, len(part.split())) for part in paragraphs if part.split()]


def started(folder: Path, varying: dict[str, Any], compiled: str) -> TensorHandler:
    """A handler of a package with these lengths."""
    folder.mkdir()
    (folder / "model.py").write_text(MODEL, encoding="utf-8")
    ids = {"shape": [varying], "dtype": "int64", "min": 0, "max": WORDS - 1}
    changes: dict[str, Any] = {
        "model.source": "./model.py:build",
        "model.handler": "tensor",
        "model.inputs": {"ids": ids, "mask": {"mask_of": "ids"}},
        "model.batch_sizes": [1, 2, 4, BATCH] if compiled == "export" else [1, BATCH],
        "model.compile": compiled,
        "serving": {"workers": 1, "threads": 1},
    }
    package(make_spec(changes, folder / "spec.yaml"), folder, progress=Progress(quiet=False))
    with zipfile.ZipFile(folder / "model.mar") as archive:
        archive.extractall(folder / "unpacked")
    handler = TensorHandler()
    handler.initialize(FakeContext(folder / "unpacked"))
    return handler


def measure(handlers: dict[str, TensorHandler], seconds: float) -> dict[str, list[float]]:
    """Seconds of each batch, the same batches for all, in turns."""
    drawn, known = random.Random(0), lengths()
    times: dict[str, list[float]] = {name: [] for name in handlers}
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        bodies = [
            json.dumps({"ids": [drawn.randrange(WORDS) for _ in range(length)]}).encode()
            for length in drawn.choices(known, k=BATCH)
        ]
        answers = []
        for name in drawn.sample(list(handlers), len(handlers)):
            begun = time.perf_counter()
            replies = ask(handlers[name], *bodies)
            times[name].append(time.perf_counter() - begun)
            answers.append([json.loads(reply.body)["output"] for reply in replies])
        for answer in answers[1:]:
            np.testing.assert_allclose(answer, answers[0], atol=1e-3)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compile", choices=("aot", "export"), default="aot")
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args()
    known = sorted(lengths())
    print(f"{len(known)} paragraphs: median {known[len(known) // 2]} words, p90 {known[len(known) * 9 // 10]}")
    with tempfile.TemporaryDirectory() as folder:
        handlers = {name: started(Path(folder, name), each, options.compile) for name, each in LENGTHS.items()}
        times = measure(handlers, options.seconds)
    rates = {name: BATCH / statistics.mean(each) for name, each in times.items()}
    for name, each in times.items():
        p99 = sorted(each)[int(len(each) * 0.99)] * 1e3
        print(f"{name:<8} {rates[name]:8.1f} requests/s   p99 of a batch {p99:7.1f} ms   {len(each)} batches")
    for name in ("buckets", "dynamic"):
        print(f"{name} over largest {ratio_text(against(times[name], times['largest']))}")


if __name__ == "__main__":
    main()
