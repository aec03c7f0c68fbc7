"""Turns image bytes into the uint8 pixels of a model's input. The cost of decoding is estimated from the headers, and a
picture that would cost too much is refused before any of it is spent. Each module reads one format or does one step."""

from marina.handlers.pictures.decode import decode_image, decode_placed, image_format, setup_pillow
from marina.handlers.pictures.resize import Placement, resize_and_crop

__all__ = ["Placement", "decode_image", "decode_placed", "image_format", "resize_and_crop", "setup_pillow"]
