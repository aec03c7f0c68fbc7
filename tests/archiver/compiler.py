"""g++ for the tests: the real one, but it reads torch's headers once for each set of flags, and compiles no file twice.

A small model's kernels are a few lines below fifty thousand lines of headers, so that most of the time of packaging is
spent on these. What it makes is the same to the byte: `test_compiler.py` compares. `MARINA_COMPILE_ANEW` in the
environment turns the memory for whole files off, for tests that want to see the compiler work.

python -I tests/archiver/compiler.py G++ ARGUMENT…      what the program `g++` that `put_on_path` writes does
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

HOME = Path(__file__).resolve().parents[2] / "build" / "compiler"
ANEW = "MARINA_COMPILE_ANEW"
# What Inductor's kernels and what it writes around them begin with.
HEADERS = {
    "#include <torch/csrc/inductor/cpp_prefix.h>": ("torch/csrc/inductor/cpp_prefix.h",),
    "#include <torch/csrc/inductor/aoti_include/cpu.h>": (
        "torch/csrc/inductor/aoti_include/cpu.h",
        "torch/csrc/inductor/aoti_runtime/interface.h",
        "torch/csrc/inductor/aoti_runtime/model_container.h",
        "torch/csrc/inductor/aoti_torch/c/shim_cpu.h",
    ),
}
# Making them takes as long as reading them three times.
_PAYS_AFTER = 3
# Flags of linking say nothing about a header.
_OF_LINKING = ("-c", "-shared", "-l", "-L", "-Wl,")


def put_on_path() -> None:
    """Puts this program in front of the real g++, for this process and those that it starts."""
    real = real_compiler()
    if real is None or shutil.which("g++") != real:
        return
    HOME.mkdir(parents=True, exist_ok=True)
    with _written_whole(HOME / "g++") as partial:
        script = f'#!/bin/sh\nexec {sys.executable} -I -S {Path(__file__).resolve()} {real} "$@"\n'
        Path(partial).write_text(script, encoding="utf-8")
        os.chmod(partial, 0o755)
    os.environ["PATH"] = f"{HOME}{os.pathsep}{os.environ['PATH']}"


def real_compiler() -> str | None:
    """Where g++ is, but for this one."""
    folders = os.environ["PATH"].split(os.pathsep)
    return shutil.which("g++", path=os.pathsep.join(folder for folder in folders if folder != str(HOME)))


def compile_with(real: str, arguments: Sequence[str]) -> int:
    """Does what `real` does with the arguments; its exit code."""
    sources = [argument for argument in arguments if argument.endswith(".cpp")]
    if len(sources) != 1 or "-o" not in arguments or not Path(sources[0]).is_file():
        return subprocess.call([real, *arguments])
    target = arguments[arguments.index("-o") + 1]
    flags = [argument for argument in arguments if argument not in (sources[0], "-o", target)]
    code = Path(sources[0]).read_text(encoding="utf-8")
    # Its comments have the paths of other files.
    known = HOME / _digest(real, flags, re.sub(r"^\s*//.*", "", code, flags=re.MULTILINE))
    # Where the source's path is not hidden, it may be in what is made of it.
    remember = any("__FILE__" in flag for flag in flags) and ANEW not in os.environ
    if remember and known.exists():
        shutil.copyfile(known, target)
        shutil.copymode(known, target)
        return 0
    exit_code = subprocess.call([real, *arguments, *_headers(real, flags, code)])
    if remember and exit_code == 0:
        with _written_whole(known) as partial:
            shutil.copy(target, partial)
    return exit_code


def _headers(real: str, flags: Sequence[str], code: str) -> list[str]:
    """Arguments that include the precompiled headers that the code begins with. They are made at the third use of the
    same flags, because earlier it does not pay; none while another process makes them."""
    names = next((names for first, names in HEADERS.items() if first in code), None)
    if names is None:
        return []
    flags = [flag for flag in flags if not flag.startswith(_OF_LINKING)]
    folder = HOME / _digest(real, flags, *names)
    header, compiled = folder / "headers.h", folder / "headers.h.gch"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return []
        if not compiled.exists():
            with (folder / "uses").open("a+") as uses:
                uses.write(".")
                if uses.tell() < _PAYS_AFTER:
                    return []
            header.write_text("".join(f"#include <{name}>\n" for name in names), encoding="utf-8")
            with _written_whole(compiled) as partial:
                subprocess.run([real, "-x", "c++-header", *flags, str(header), "-o", partial], check=True)
    return ["-include", str(header)]


def _digest(real: str, *parts: object) -> str:
    state = Path(real).resolve().stat()
    return hashlib.sha256(repr((state.st_size, state.st_mtime_ns, parts)).encode()).hexdigest()[:32]


@contextmanager
def _written_whole(target: Path) -> Iterator[str]:
    """A file to write that is moved to its place at the end: nobody reads half of it."""
    partial = f"{target}.{os.getpid()}"
    try:
        yield partial
        os.replace(partial, target)
    finally:
        Path(partial).unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(compile_with(sys.argv[1], sys.argv[2:]))
