"""BentoML: a worker a core, with its adaptive batching."""

import os

import bentoml
from classifier import Classifier


@bentoml.service(workers=int(os.environ["WORKERS"]), traffic={"timeout": 60})
class Labels:
    def __init__(self):
        self.classifier = Classifier(os.environ["MODEL"])

    @bentoml.api(batchable=True, max_batch_size=16, max_latency_ms=10_000)
    def predict(self, text: list[str]) -> list[dict]:
        return self.classifier.answers(text)
