"""Inspects an archive: what it contains, and what runs when it is loaded. Nothing here imports torch."""

from marina.archiver.inspecting.inspect import inspect
from marina.archiver.inspecting.reading import Archive, open_archive

__all__ = ["Archive", "inspect", "open_archive"]
