"""Image bytes to the uint8 pixels of a model's input. What decoding costs is known from the headers, and refused where
it is too much, before any of it is spent; each module reads one format or does one step."""

from handlers.pictures.decode import decode_image, image_format, setup_pillow
from handlers.pictures.resize import resize_and_crop

__all__ = ["decode_image", "image_format", "resize_and_crop", "setup_pillow"]
