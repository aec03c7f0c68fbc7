"""Makes a picture fit the model's input: scales it, and cuts out its centre or fills the rest, as torchvision does."""

from dataclasses import dataclass

import numpy as np
import torch

from marina.handlers.arrays import Array
from marina.handlers.record import ImageSpec

_MODES = {"bilinear": "bilinear", "bicubic": "bicubic", "nearest": "nearest-exact"}


@dataclass(frozen=True)
class Placement:
    """Where a picture lies in the model's input."""

    height: int
    width: int
    """The size of the picture as it was sent, upright."""
    scaled_height: int
    scaled_width: int
    top: int
    left: int
    """The place of its upper left corner in the model's input; negative if that is cut off."""

    def to_picture(self, boxes: Array) -> Array:
        """Boxes in pixels of the model's input, as pixels of the picture; what lies outside is cut off."""
        across, down = self.width / self.scaled_width, self.height / self.scaled_height
        moved = (boxes - np.array([self.left, self.top] * 2)) * np.array([across, down] * 2)
        inside: Array = moved.clip(0, np.array([self.width, self.height] * 2))
        return inside

    def box(self) -> tuple[int, int, int, int]:
        """Left, top, right and bottom of the picture, in pixels of the model's input."""
        return self.left, self.top, self.left + self.scaled_width, self.top + self.scaled_height


def place(height: int, width: int, spec: ImageSpec) -> Placement:
    """Where a picture of this size lies in the model's input. Sizes are truncated and rounded as in torchvision, so
    that a crop falls on the same pixels."""
    if spec.fit == "letterbox":
        scale = min(spec.height / height, spec.width / width)
        new_height, new_width = max(1, round(height * scale)), max(1, round(width * scale))
        # As ultralytics rounds it.
        top, left = round((spec.height - new_height) / 2 - 0.1), round((spec.width - new_width) / 2 - 0.1)
        return Placement(height, width, new_height, new_width, top, left)
    if spec.fit == "squash":
        longer = max(spec.height, spec.width)
        new_height, new_width = (round(spec.resize * side / longer) for side in (spec.height, spec.width))
    else:
        short = min(height, width)
        new_height, new_width = int(spec.resize * height / short), int(spec.resize * width / short)
    top, left = round((new_height - spec.height) / 2), round((new_width - spec.width) / 2)
    return Placement(height, width, new_height, new_width, -top, -left)


def resize_and_crop(pixels: Array, spec: ImageSpec) -> Array:
    """Returns uint8 pixels of the model's size, as a view that need not be contiguous."""
    at = place(pixels.shape[0], pixels.shape[1], spec)
    if (at.scaled_height, at.scaled_width) != pixels.shape[:2]:
        # torch has vectorised kernels for uint8 in channels-last layout, 1.7 to 3 times as fast as Pillow. The batch
        # dimension must be added first: `permute(2, 0, 1)[None]` has other strides, and the result would be planar.
        batch = torch.from_numpy(pixels).unsqueeze(0).permute(0, 3, 1, 2)
        mode = _MODES[spec.interpolation]
        size = (at.scaled_height, at.scaled_width)
        resized = torch.nn.functional.interpolate(batch, size, mode=mode, antialias=mode != "nearest-exact")
        pixels = resized[0].permute(1, 2, 0).numpy()
    if spec.fit == "letterbox":
        boxed = np.full((spec.height, spec.width, pixels.shape[2]), spec.fill, np.uint8)
        boxed[at.top : at.top + at.scaled_height, at.left : at.left + at.scaled_width] = pixels
        return boxed
    crop = pixels[-at.top : spec.height - at.top, -at.left : spec.width - at.left]
    # Otherwise a small crop would keep a whole large picture in memory until its batch is answered.
    return np.ascontiguousarray(crop) if pixels.nbytes > 4 * crop.nbytes else crop
