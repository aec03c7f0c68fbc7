"""Pictures to send, and what torchvision would make of them."""

import io

import numpy as np
import torch
from fakes import MEAN, RESIZE, SIDE, STD, TOP_K
from PIL import Image

from marina.handlers.record import ImageSpec

SPEC = ImageSpec(SIDE, SIDE, RESIZE, 3, MEAN, STD, "bilinear", TOP_K, 1_000_000)
GREY = ImageSpec(SIDE, SIDE, RESIZE, 1, MEAN[:1], STD[:1], "bilinear", TOP_K, 1_000_000)


def smooth(height: int, width: int, channels: int = 3) -> np.ndarray:
    """A picture without sharp edges, different in every corner and channel."""
    rows, columns = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    planes = [rows, columns, (rows + columns) / 2][:channels]
    return np.stack([40 + 170 * plane for plane in planes], axis=-1).round().astype(np.uint8)


def encoded(picture: np.ndarray | Image.Image, kind: str, **options: object) -> bytes:
    image = picture if isinstance(picture, Image.Image) else Image.fromarray(picture)
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def reference(pixels: np.ndarray, spec: ImageSpec = SPEC) -> np.ndarray:
    """torchvision's Resize (tensor, antialias) and CenterCrop, in float."""
    height, width = pixels.shape[:2]
    short = min(height, width)
    size = (int(spec.resize * height / short), int(spec.resize * width / short))
    batch = torch.from_numpy(pixels).permute(2, 0, 1)[None].float()
    resized = torch.nn.functional.interpolate(batch, size, mode=spec.interpolation, antialias=True)
    top, left = round((size[0] - spec.height) / 2.0), round((size[1] - spec.width) / 2.0)
    cropped = resized[0, :, top : top + spec.height, left : left + spec.width]
    return cropped.clamp(0, 255).round().to(torch.uint8).permute(1, 2, 0).numpy()


def distance(left: np.ndarray, right: np.ndarray) -> int:
    assert left.shape == right.shape
    return int(np.abs(left.astype(int) - right.astype(int)).max())


PICTURE = smooth(90, 70)
JPEG = encoded(PICTURE, "JPEG", quality=95)
PNG = encoded(PICTURE, "PNG")
