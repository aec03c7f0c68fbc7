"""Inspects an archive: what it contains, and what loading it would run. Nothing here imports torch."""

from archiver.inspecting.inspect import inspect

__all__ = ["inspect"]
