"""TorchServe's own way to serve a text classifier: a handler of a batch, after its Transformers example."""

from pathlib import Path

from classifier import Classifier, body_text
from ts.torch_handler.base_handler import BaseHandler


class LabelHandler(BaseHandler):
    def initialize(self, context):
        self.classifier = Classifier(Path(context.system_properties["model_dir"]))
        self.initialized = True

    def handle(self, data, context):
        return self.classifier.answers([body_text(row.get("body") or row.get("data")) for row in data])
