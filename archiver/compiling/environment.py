"""The environment of a compilation: a compiler that leaves no trace of this machine, a worker's number of threads, and
no warnings."""

import hashlib
import json
import logging
import os
import shlex
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from marina.archiver.compiling.cache import cache_folder, cpu_model
from marina.archiver.toolchain import compiler_version, find_compiler
from marina.config.record import write_text


@contextmanager
def reproducible_compiler() -> Iterator[dict[str, str]]:
    """The environment variables of a process that compiles kernels as a worker would, but reproducibly."""
    with tempfile.TemporaryDirectory(prefix="marina-compile-") as folder:
        name = reproducible_compiler_in(Path(folder)).name
        yield os.environ | {"CXX": name, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def reproducible_compiler_in(folder: Path) -> Path:
    """Writes a compiler wrapper that leaves no path, symbol or build id of this machine in its output.

    With a single argument, such as `--version`, it runs the real compiler under the same name, because Inductor looks
    kernels up by what that prints."""
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
def cached_instruction_checks() -> Iterator[None]:
    """Within this context, Inductor's check that the compiler and this CPU support an instruction set runs only once,
    and its success is stored in our cache for later processes.

    For each instruction set Inductor compiles and loads a library, and remembers the result in its own cache folder.
    Ours is new for every compilation, so each process would spend some ten seconds on these checks."""
    # Imported here because Inductor takes a second to import, and only `compile: aot` needs it.
    from torch._inductor.cpu_vec_isa import VecISA

    check_build = VecISA.check_build

    def cached_check(instructions: Any, code: str) -> bool:
        key = [torch.__version__, compiler_version(), cpu_model(), instructions.build_arch_flags(), code]
        folder, name = cache_folder(), hashlib.sha256(json.dumps(key).encode()).hexdigest()
        if folder is None:
            return check_build(instructions, code)
        mark = folder / f"{name}.works"
        if mark.exists():
            return True
        if works := check_build(instructions, code):
            with suppress(OSError):
                write_text(mark, "")
        return works

    with patch.object(VecISA, "check_build", cached_check):
        yield


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Sets torch's number of threads within this context: Inductor compiles the number into its loops, so it has to be
    that of a worker."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def quiet() -> Iterator[None]:
    """Suppresses warnings and log lines, which torch writes for its own developers."""
    logged = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logged)
