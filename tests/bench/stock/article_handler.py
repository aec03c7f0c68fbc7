"""A handler as tutorials have it: the client decodes and normalises, and sends 150,528 numbers as JSON; fp32, eager.

What would keep such a handler from running at all is corrected: the body's key, the shape, and loading the weights.
"""

from pathlib import Path

import torch
from torchvision.models import resnet50
from ts.torch_handler.base_handler import BaseHandler


class ArticleHandler(BaseHandler):
    def initialize(self, context):
        folder = Path(context.system_properties["model_dir"])
        self.device = torch.device("cpu")
        self.model = resnet50()
        self.model.load_state_dict(torch.load(folder / "resnet50.pt", map_location=self.device))
        self.model.eval()
        self.initialized = True

    def preprocess(self, data):
        images = [torch.tensor(row["body"]["image"], dtype=torch.float32).reshape(3, 224, 224) for row in data]
        return torch.stack(images).to(self.device)

    def inference(self, data):
        with torch.no_grad():
            return self.model(data)

    def postprocess(self, data):
        probabilities = torch.nn.functional.softmax(data, dim=1)
        top_probs, top_indices = torch.topk(probabilities, 5)
        return [
            {"top_indices": indices.tolist(), "top_probs": probs.tolist()}
            for indices, probs in zip(top_indices, top_probs, strict=True)
        ]
