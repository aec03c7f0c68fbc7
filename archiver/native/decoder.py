"""The library of a compiled decoder: the same for every model, made for one kind of processor."""

from __future__ import annotations

import hashlib
import json
import subprocess
import tempfile
from pathlib import Path

from archiver.compiling import keep, processor, taken_out
from archiver.instructions import compiler_flags
from archiver.toolchain import compiler_version, find_compiler
from config.cpu_targets import CpuTarget
from config.errors import ToolMissing

SOURCE = Path(__file__).with_name("decoder.cpp")
_FLAGS = (
    *("-x", "c++", "-std=c++17", "-O3", "-fopenmp", "-fPIC", "-shared"),
    # Errors of arithmetic are not asked for, so that all of it can be done in vectors.
    *("-fno-math-errno", "-fno-trapping-math", "-Wno-psabi"),
    # The same bytes wherever it is made.
    *("-s", "-Wl,--build-id=none"),
)


def compile_decoder(target: CpuTarget, file: Path) -> None:
    """Puts the library at `file`, from the cache where it was compiled before."""
    compiler = find_compiler()
    flags, source = [*_FLAGS, *compiler_flags(target)], SOURCE.read_bytes()
    made_by = [compiler_version(), flags, processor() if target == "native" else "", hashlib.sha256(source).hexdigest()]
    key = hashlib.sha256(json.dumps(made_by).encode()).hexdigest()
    if taken_out(key, file):
        return
    with tempfile.TemporaryDirectory(prefix="marina-compile-", dir=file.parent) as scratch:
        made = Path(scratch, file.name)
        # Read from its input: no path of this machine gets into it.
        done = subprocess.run([compiler, *flags, "-", "-o", str(made)], input=source, capture_output=True)
        if done.returncode != 0:
            reason = done.stderr.decode(errors="replace").strip().splitlines()[:1]
            text = f"`{compiler}` cannot compile the decoder: {' '.join(reason) or 'no message'}"
            raise ToolMissing(text, hint="g++ 11 or newer, or use `compile: eager`")
        made.replace(file)
    keep(key, file)
