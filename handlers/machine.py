"""Compares this machine with the one for which a compiled artifact was made.

The packager stores `machine_key()` in the record, and the worker compares it with its own. The CPU must have all stored
flags, and may have more."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

# The flags that a compiler with -march=native may rely on, and by which oneDNN chooses code. On a CPU without one of
# them, the worker would die of an illegal instruction in the middle of a request.
ISA_FLAGS = re.compile(
    r"avx\w*|amx_\w+|fma|f16c|bmi[12]|abm|movbe|gfni|vaes|vpclmulqdq"  # x86
    r"|asimd\w*|sve\w*|bf16|i8mm"  # arm64
)
CPUINFO = Path("/proc/cpuinfo")


def machine_key(device: torch.device, cpuinfo: Path = CPUINFO) -> dict[str, Any]:
    """The key of this machine; `device` must be available."""
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        return {
            "torch": _torch_version(),
            "device": "cuda",
            "capability": f"{major}.{minor}",
            "cuda": torch.version.cuda,
        }
    present = cpu_flags(cpuinfo)
    return {"torch": _torch_version(), "device": "cpu", "isa": sorted(filter(ISA_FLAGS.fullmatch, present))}


def _torch_version() -> str:
    """torch's version, without the build after a plus: PyPI's has CUDA, that of an image for CPUs has none, and on a
    CPU both run the same artifacts."""
    return str(torch.__version__).partition("+")[0]


def machine_mismatches(key: Mapping[str, Any], device: torch.device, cpuinfo: Path = CPUINFO) -> list[str]:
    """The reasons why this machine does not fit the key; empty if the artifact can run here."""
    here = machine_key(device, cpuinfo)
    points = [
        f"`{name}`: packaged for `{key.get(name)}`, here `{here[name]}`"
        for name in here
        if name != "isa" and key.get(name) != here[name]
    ]
    if missing := sorted(set(key.get("isa", ())) - cpu_flags(cpuinfo)) if device.type == "cpu" else []:
        points.append(f"`isa`: this CPU lacks `{'`, `'.join(missing)}`")
    return points


def cpu_flags(cpuinfo: Path = CPUINFO) -> set[str]:
    """The CPU's feature flags, as Linux names them."""
    for line in cpuinfo.read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):  # x86, arm64
            return set(value.split())
    return set()
