"""Cleans up after long work, however it ends: no process and no temporary file is left, not even a compiler's."""

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from marina.config.machine import environment_with, stops_as_interrupt


@contextmanager
def cleanup_on_exit() -> Iterator[Callable[[], bool]]:
    """Makes the first signal that stops work raise KeyboardInterrupt, and ignores further ones; yields a function that
    tells whether one has come.

    At the end, kills every process that was started in the `with` block, directly or by its children, and removes the
    temporary folder that all of them use. If this process is killed, the next one that comes here does that."""
    import psutil

    from marina.server.system.processes import adopt_orphans
    from marina.server.system.rundir import OWNER_VARIABLE, create_run_directory, end_processes

    with stops_as_interrupt(signal.SIGINT) as interrupted:
        directory, earlier = create_run_directory(), psutil.Process().children(recursive=True)
        adopt_orphans()
        folder = tempfile.tempdir = str(directory.path)
        try:
            with environment_with({"TMPDIR": folder, OWNER_VARIABLE: folder}):
                yield interrupted
        finally:
            tempfile.tempdir = None
            # torch stores the folder of its cache in the environment.
            for name in [name for name, value in os.environ.items() if value.startswith(folder)]:
                del os.environ[name]
            end_processes(directory.path, but=earlier)
            directory.close()
