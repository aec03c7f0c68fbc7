"""The command line: runs the stage of each verb, and turns errors into exit codes. A stage is imported when its verb
runs."""

from marina.command import main

__all__ = ["main"]
