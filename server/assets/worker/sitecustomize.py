"""First on the path of TorchServe's workers, so that each asks the kernel to end it with Java: one that is stopped, or
in the middle of a batch, would not notice that Java has gone."""

import ctypes
import os
import signal
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # Java may have ended before that.
    if "ts/model_service_worker.py" in " ".join(sys.orig_argv) and os.getppid() == 1:
        os._exit(1)


def _load_next() -> None:
    """The module of this name that this one hides, if there is one."""
    here = str(Path(__file__).parent)
    found = PathFinder.find_spec("sitecustomize", [path for path in sys.path if path != here])
    if found and found.loader:
        found.loader.exec_module(module_from_spec(found))


_die_with_parent()
_load_next()
