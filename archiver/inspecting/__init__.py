"""Inspects an archive: what it contains, and what loading it would run. Nothing here imports torch."""

from marina.archiver.inspecting.inspect import inspect

__all__ = ["inspect"]
