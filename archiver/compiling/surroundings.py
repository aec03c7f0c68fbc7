"""What is around a compilation: a compiler that leaves no trace of this machine, the threads of a worker, silence."""

from __future__ import annotations

import os
import shlex
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from archiver.toolchain import find_compiler


@contextmanager
def reproducible_compiler() -> Iterator[dict[str, str]]:
    """The environment of a process that compiles kernels as a worker would, only reproducibly."""
    with tempfile.TemporaryDirectory(prefix="marina-compile-") as folder:
        name = reproducible_compiler_in(Path(folder)).name
        yield os.environ | {"CXX": name, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def reproducible_compiler_in(folder: Path) -> Path:
    """A compiler that leaves no path, symbol or build number of this machine in what it makes.

    Asked for its version it answers as the real one, called by the same name: Inductor finds kernels again by that.
    """
    compiler = Path(find_compiler())
    script = folder / compiler.name
    lines = (
        "#!/bin/sh",
        f"PATH={shlex.quote(str(compiler.parent))}:$PATH",
        f'[ $# -eq 1 ] && exec {compiler.name} "$@"',
        'case " $* " in *" -shared "*) link="-s -Wl,--build-id=none";; *) link="";; esac',
        f'exec {compiler.name} "$@" -Wno-builtin-macro-redefined \'-D__FILE__="model.cpp"\' $link',
    )
    script.write_text("\n".join(lines) + "\n", encoding="utf-8")
    script.chmod(0o755)
    return script


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Inductor writes the number of threads into its loops, so compilation runs with those of a worker."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings torch has for its own developers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
