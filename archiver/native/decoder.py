"""Compiles the decoder's library: the same for every model, for one kind of processor."""

import hashlib
import json
import subprocess
import tempfile
from pathlib import Path

from marina.archiver.compiling import cpu_model, load_from_cache, store_in_cache
from marina.archiver.cpu_target import compiler_flags
from marina.archiver.toolchain import compiler_version, find_compiler
from marina.config.cpu_targets import CpuTarget
from marina.config.errors import ToolMissing

_FOLDER = Path(__file__).parent
_SOURCE, _HEADERS = _FOLDER / "decoder.cpp", sorted(_FOLDER.glob("*.h"))
_FLAGS = (
    *("-x", "c++", "-std=c++17", "-O3", "-fopenmp", "-fPIC", "-shared"),
    # Nothing reads `errno` or traps of arithmetic; without them all of it can be vectorised.
    *("-fno-math-errno", "-fno-trapping-math", "-Wno-psabi"),
    # The library has the same bytes wherever it is compiled.
    *("-s", "-Wl,--build-id=none"),
)


def compile_decoder(target: CpuTarget, file: Path) -> None:
    """Writes the library to `file`, from the cache if it was compiled before."""
    compiler = find_compiler()
    flags, source = [*_FLAGS, *compiler_flags(target)], _SOURCE.read_bytes()
    digest = hashlib.sha256(source + b"".join(header.read_bytes() for header in _HEADERS)).hexdigest()
    origin = [compiler_version(), flags, cpu_model() if target == "native" else "", digest]
    key = hashlib.sha256(json.dumps(origin).encode()).hexdigest()
    if load_from_cache(key, file):
        return
    with tempfile.TemporaryDirectory(prefix="marina-compile-", dir=file.parent) as scratch:
        compiled = Path(scratch, file.name)
        # The compiler reads standard input, so that no path of this machine gets into the library.
        command = [compiler, *flags, "-I", str(_FOLDER), "-", "-o", str(compiled)]
        done = subprocess.run(command, input=source, capture_output=True)
        if done.returncode != 0:
            reason = done.stderr.decode(errors="replace").strip().splitlines()[:1]
            text = f"`{compiler}` cannot compile the decoder: {' '.join(reason) or 'no message'}"
            raise ToolMissing(text, hint="g++ 11 or newer, or use `compile: eager`")
        compiled.replace(file)
    store_in_cache(key, file)
