"""The command line: runs the stage of each verb, and turns errors into exit codes. A stage is imported when its verb
runs.

`command` has the parser and the exit codes. The verbs are in `packaging`, `serving`, `measuring`, `comparing`,
`simulating`, `cluster` and the room `starting`."""

from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one verb, and returns its exit code."""
    try:
        from marina.command import main as run
    except KeyboardInterrupt:
        return 130  # as for Ctrl-C at any later time
    return run(arguments)
