"""`handler: image` with `task: segment`: pictures in, a PNG out in which each pixel is the number of its class.

Takes what `handler: image` takes. The mask has the size of the model's input, or with `mask_size: picture` that of
the picture that was sent; a palette gives every class a colour, so that people can look at it. A network with one
class answers 1 where its score is 0.5 or more."""

import io
from collections.abc import Mapping

import numpy as np
import torch
from PIL import Image

from marina.handlers import memory
from marina.handlers.arrays import Array
from marina.handlers.image import ImageHandler
from marina.handlers.pictures import Placement
from marina.handlers.request import Answer, Form, Request

# Class 0, mostly the background, is black; the colours of the others are far apart.
PALETTE = [number * step % 256 for number in range(256) for step in (67, 151, 211)]

# Of an enlarged mask: Pillow's picture, and what writing it takes at most.
_PIXEL_BYTES = 3


class SegmentationHandler(ImageHandler):
    gives = Form(content_type="image/png")

    def setup(self) -> None:
        super().setup()
        self.place = [port.name for port in self.record.outputs].index("scores")

    def encode(self, outputs: list[Array], request: Request) -> Answer:
        picture = Image.fromarray(self._classes(outputs))
        if self.spec.mask_size == "picture" and request.kept is not None:
            at: Placement = request.kept
            memory.note_estimate(_PIXEL_BYTES * at.height * at.width)
            # Classes have no values between them.
            picture = picture.resize((at.width, at.height), Image.Resampling.NEAREST, box=at.box())
        picture.putpalette(PALETTE)
        buffer = io.BytesIO()
        picture.save(buffer, "PNG")
        return Answer(buffer.getvalue(), "image/png")

    def name_outputs(self, outputs: list[Array]) -> Mapping[str, Array | list[str]]:
        return {"classes": self._classes(outputs)}

    def _classes(self, outputs: list[Array]) -> Array:
        """The class of each pixel of the model's input."""
        scores = outputs[self.place].astype(np.float32)
        size = (self.spec.height, self.spec.width)
        if scores.shape[1:] != size:
            # Before the class is chosen, as `transformers` does, so that borders are smooth.
            batch = torch.from_numpy(scores).unsqueeze(0)
            scores = torch.nn.functional.interpolate(batch, size, mode="bilinear", align_corners=False)[0].numpy()
        if len(scores) > 1:
            classes: Array = scores.argmax(axis=0).astype(np.uint8)
            return classes
        mask: Array = (scores[0] >= (0.5 if self.spec.activation == "none" else 0)).astype(np.uint8)
        return mask
