"""BentoML as its quick start has it: one worker, an image as the type hint says."""

import bentoml
import network
import torch
from PIL.Image import Image


@bentoml.service
class Quick:
    def __init__(self):
        self.model, self.transform = network.quick_start()

    @bentoml.api
    def predict(self, image: Image) -> dict:
        with torch.no_grad():
            return network.top_five(self.model(self.transform(image.convert("RGB")).unsqueeze(0)))[0]
