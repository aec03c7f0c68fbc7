"""The C++ compiler that `compile: aot` and `jit` need. Apart from what uses it: asking for it needs no torch."""

from __future__ import annotations

import os
import shutil
import subprocess

from config.errors import ToolMissing


def find_compiler() -> str:
    """`$CXX`, or `g++`; ToolMissing when there is none."""
    name = os.environ.get("CXX", "g++")
    path = shutil.which(name)
    if path is None:
        raise ToolMissing(
            f"`compile: aot` and `jit` need a C++ compiler, and `{name}` is not on the PATH",
            hint="apt-get install g++, or use `compile: export`",
        )
    return path


def compiler_version() -> str:
    """What it says of itself."""
    return subprocess.run([find_compiler(), "--version"], capture_output=True, text=True).stdout
