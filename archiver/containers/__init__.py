"""Container images of a package. No torch here."""

from archiver.containers.build import Options, image
from archiver.containers.builders import find_builder

__all__ = ["Options", "find_builder", "image"]
