"""Builds container images of a package. Nothing here imports torch."""

from marina.archiver.containers.build import ImageOptions, build_image
from marina.archiver.containers.builders import find_builder

__all__ = ["ImageOptions", "build_image", "find_builder"]
