"""What takes long to build, once for all processes and sessions of the tests: kept under build/tests while nothing
that it is made of changes."""

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from specs import ROOT, digits_spec, tales_spec
from tools import HAS_GPU, needs

from marina.config.progress import Progress
from marina.config.record import Package, read_package

# Each size is compiled for itself; the other variants show that there may be several.
ONE_SIZE: dict[str, Any] = {"model.batch_sizes": [8]}
VARIANTS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"model.precision": "bf16", **ONE_SIZE},
    "int8": {"model.precision": "int8", **ONE_SIZE},
    "jit": {"model.compile": "jit", "model.precision": "int8", **ONE_SIZE},
    "export": {"model.compile": "export"},
    "eager": {"model.compile": "eager"},
    # Both oneDNN's kernels and the compiler's are in it.
    "v3": {"model.cpu_target": "x86-64-v3", "model.precision": "int8", **ONE_SIZE},
}
# With what stands in for vLLM, which agrees with no model.
VLLM: dict[str, Any] = {"engine": "vllm", "context": 512, "slots": 16, "max_tokens": 400}
TALES_VARIANTS: dict[str, dict[str, Any]] = {
    "vllm": {"model.precision": "bf16", "model.min_agreement": 0, "text": VLLM},
    # On a GPU, unless it is vLLM's build for CPUs.
    "real vllm": {
        "model.precision": "bf16",
        "model.min_agreement": 0.95,
        "text": VLLM,
        "serving.startup_timeout_s": 600,
    },
    "int8": {"model.compile": "aot", "model.precision": "int8"},
    "fake": {"text": {"engine": "fake", "context": 2048, "slots": 32, "max_tokens": 512}},
}
# A Python with a real vLLM, if there is one.
VLLM_PYTHON = os.environ.get("VLLM_PYTHON") or None
# Set in `conftest.py` for all tests, as MARINA_CACHE.
COMPILED = ROOT / "build" / "compiled"
# What a package is made of. The server is not in it, so that working on it packages nothing again.
INGREDIENTS = ("archiver", "config", "handlers")
KEPT = ROOT / "build" / "tests"


@functools.cache
def home() -> Path:
    """The folder of what is built from the sources as they are; those of other sources are removed."""
    digest = hashlib.sha256()
    for file in sorted(file for folder in INGREDIENTS for file in (ROOT / folder).rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            digest.update(file.name.encode() + file.read_bytes())
    current = KEPT / digest.hexdigest()[:12]
    current.mkdir(parents=True, exist_ok=True)
    for old in KEPT.iterdir():
        if old != current:
            shutil.rmtree(old, ignore_errors=True)
    return current


def cache_of_nothing_compiled(folder: Path) -> Path:
    """A cache that knows what this machine's compiler can do, which takes ten seconds to find out, and no more."""
    folder.mkdir(parents=True)
    for mark in COMPILED.glob("*.works"):
        shutil.copy(mark, folder)
    return folder


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Holds a lock that other processes wait for; it ends with the process that holds it."""
    with file.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def built_once(folder: Path, build: Callable[[Path], object]) -> Path:
    """A folder that `build` fills at its first use; another process that wants it meanwhile waits for it."""
    with locked(folder.with_name(f"{folder.name}.lock")):
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=folder.parent) as partial:
                build(Path(partial, "out"))
                os.replace(Path(partial, "out"), folder)
    return folder


def packaged_digits(variant: str) -> tuple[Path, Package]:
    """The folder and the record of a variant of the digits example.

    A process of its own makes it, as on the command line: what tests did to torch before must not change its bytes.
    """

    def build(out: Path) -> None:
        needs("g++", package="g++")
        command = [sys.executable, __file__, variant, str(out)]
        subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)

    folder = built_once(home() / variant, build)
    return folder, read_package(folder)


def tales_changes(variant: str) -> dict[str, Any]:
    """What a variant has that the tales example has not; one with vLLM has a Python with it, or with what stands in."""
    changes = TALES_VARIANTS[variant]
    if variant == "vllm":
        return changes | {"text": VLLM | {"vllm": {"python": standin_python()}}}
    if variant != "real vllm":
        return changes
    settings = {"python": VLLM_PYTHON, "args": {"gpu_memory_utilization": 0.2}}
    on_gpu = {"serving.device": "cuda", "kubernetes.resources.gpu": 1} if HAS_GPU else {}
    return changes | {"text": VLLM | {"vllm": settings}} | on_gpu


def standin_python() -> str:
    """A Python with nothing in it but what stands in for vLLM."""

    def build(out: Path) -> None:
        venv.EnvBuilder(symlinks=True).create(out)
        (site,) = (out / "lib").glob("python3.*/site-packages")
        (site / "standin.pth").write_text(f"{ROOT / 'tests' / 'standin'}\n", encoding="utf-8")

    return str(built_once(home() / "standin", build) / "bin" / "python")


def packaged_tales(variant: str) -> tuple[Path, Package]:
    """The folder and the record of a variant of the tales example, by a process of its own too."""

    def build(out: Path) -> None:
        command = [sys.executable, __file__, f"tales {variant}", str(out)]
        subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)

    folder = built_once(home() / f"tales-{variant.replace(' ', '-')}", build)
    return folder, read_package(folder)


def main(variant: str, out: str) -> None:
    from marina.archiver.package import package

    _, _, tales = variant.partition(" ")
    spec = tales_spec(tales_changes(tales)) if tales else digits_spec(VARIANTS[variant])
    package(spec, Path(out), progress=Progress(quiet=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
