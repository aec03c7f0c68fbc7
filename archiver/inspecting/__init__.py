"""What an archive holds and what loading it would run. No torch here."""

from archiver.inspecting.inspect import inspect
from archiver.inspecting.report import Report

__all__ = ["Report", "inspect"]
