"""Draws the pictures of this example: a sample as large as a phone would send, and a few to calibrate on.

python config/examples/resnet50/draw.py
"""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

HERE = Path(__file__).parent
CALIBRATION_PICTURES = 16


def harbour(seed: int, size: int) -> Image.Image:
    """Sky over waves, some boats, and noise, which makes the JPEG as large as that of a photograph."""
    random = np.random.default_rng(seed)
    picture = Image.fromarray(_sky_and_sea(random, size))
    draw = ImageDraw.Draw(picture)
    for _ in range(random.integers(2, 6)):
        _boat(random, draw, size)
    draw.ellipse([size * 0.7, size * 0.08, size * 0.8, size * 0.18], fill=(255, 240, 180))
    pixels = np.asarray(picture.filter(ImageFilter.GaussianBlur(0.6))).astype(float)
    return Image.fromarray(np.clip(pixels + random.normal(0, 8, pixels.shape), 0, 255).astype(np.uint8))


def _sky_and_sea(random: np.random.Generator, size: int) -> np.ndarray:
    top = random.integers((80, 120, 180), (200, 220, 255))
    fade = np.linspace(0, 1, size)[:, None, None]
    pixels = (top * (1 - fade) + (top * 0.5 + 100) * fade) * np.ones((size, size, 1))
    horizon = size // 2
    down, across = np.arange(size - horizon)[:, None], np.arange(size)[None]
    waves = 12 * np.sin(across / random.uniform(6, 20) + down / 3) + 6 * np.sin(across / 3.1 - down / 2.2)
    pixels[horizon:] = random.integers((10, 60, 90), (60, 120, 160)) + waves[..., None]
    return np.clip(pixels, 0, 255).astype(np.uint8)


def _boat(random: np.random.Generator, draw: ImageDraw.ImageDraw, size: int) -> None:
    left, length = int(random.integers(0, size - size // 5)), int(random.integers(size // 8, size // 3))
    deck = size // 2 + int(random.integers(0, size // 8))
    hull, sail = (tuple(map(int, random.integers(low, 255, 3))) for low in (20, 180))
    keel = deck + length // 5
    draw.polygon(
        [(left, deck), (left + length, deck), (left + length * 5 // 6, keel), (left + length // 8, keel)], hull
    )
    mast = left + length // 2
    draw.line([(mast, deck), (mast, deck - length)], fill=(60, 40, 30), width=max(2, size // 200))
    draw.polygon([(mast + 3, deck - length), (mast + 3, deck - 8), (mast + length // 2, deck - 8)], sail)


def main() -> None:
    harbour(7, 720).save(HERE / "samples" / "harbour.jpg", quality=86)
    for index in range(CALIBRATION_PICTURES):
        harbour(100 + index, 232).save(HERE / "calibration" / f"{index:02}.jpg", quality=80)


if __name__ == "__main__":
    main()
