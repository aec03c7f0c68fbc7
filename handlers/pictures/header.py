"""What the header of a picture declares."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Header:
    height: int
    width: int
    pixel_bytes: int
    """Bytes per pixel as Pillow stores it, and at the peak."""
    extra_bytes: int = 0
    """What decoding takes besides, whatever the number of pixels."""
    orientation: int = 1
    """As in EXIF, if the header itself says it."""
