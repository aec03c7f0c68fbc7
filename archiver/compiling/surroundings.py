"""What is around a compilation: a compiler that leaves no trace of this machine, the threads of a worker, silence."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from archiver.compiling.cache import cache_folder, moved_into, processor
from archiver.toolchain import compiler_version, find_compiler


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
def instructions_tried_once() -> Iterator[None]:
    """While it lasts, what one process has found the compiler and this CPU able to do, no other one tries again.

    Inductor compiles and loads a library for each set of vector instructions, and remembers it in a folder that is a
    new one for every compilation here: some ten seconds of each process.
    """
    # Imported here: Inductor takes a second, and only `compile: aot` needs it.
    from torch._inductor.cpu_vec_isa import VecISA

    try_it = VecISA.check_build

    def tried(instructions: Any, code: str) -> bool:
        tried_with = [torch.__version__, compiler_version(), processor(), instructions.build_arch_flags(), code]
        folder, name = cache_folder(), hashlib.sha256(json.dumps(tried_with).encode()).hexdigest()
        if folder is None:
            return try_it(instructions, code)
        mark = folder / f"{name}.works"
        if mark.exists():
            return True
        if works := try_it(instructions, code):
            with suppress(OSError):
                moved_into(mark, b"")
        return works

    VecISA.check_build = tried  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        VecISA.check_build = try_it  # type: ignore[method-assign]


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
