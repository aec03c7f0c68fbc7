"""The command line: maps verbs to a stage and errors to exit codes. Stages are imported when their verb runs."""

from marina.command import main

__all__ = ["main"]
