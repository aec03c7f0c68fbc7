"""Builds container images of a package. Nothing here imports torch."""

from archiver.containers.build import ImageOptions, build_image
from archiver.containers.builders import find_builder

__all__ = ["ImageOptions", "build_image", "find_builder"]
