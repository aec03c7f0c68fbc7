"""BentoML around the compiled artifact: a worker a core, with its adaptive batching."""

import os
from pathlib import Path

import bentoml
import network

BATCH, WORKERS = int(os.environ["BATCH"]), int(os.environ["WORKERS"])


@bentoml.service(workers=WORKERS, traffic={"timeout": 60})
class Compiled:
    def __init__(self):
        self.artifact = network.Artifact()

    @bentoml.api(batchable=True, max_batch_size=BATCH, max_latency_ms=10_000)
    def predict(self, images: list[Path]) -> list[dict]:
        return self.artifact.answers([self.artifact.pixels(image.read_bytes()) for image in images])
