"""Finds the C++ compiler that `compile: aot` and `jit` need. A module of its own, so that callers need no torch."""

import os
import shutil
import subprocess

from marina.config.errors import ToolMissing


def find_compiler() -> str:
    """The path of `$CXX`, or of `g++`; ToolMissing if it is not installed."""
    name = os.environ.get("CXX", "g++")
    path = shutil.which(name)
    if path is None:
        raise ToolMissing(
            f"`compile: aot` and `jit` need a C++ compiler, and `{name}` is not on the PATH",
            hint="apt-get install g++, or use `compile: export`",
        )
    return path


def compiler_version() -> str:
    """The output of the compiler's `--version`."""
    return subprocess.run([find_compiler(), "--version"], capture_output=True, text=True).stdout
