"""What a compiled artifact needs of the machine it runs on: the key it was made under, and how this machine differs.

The packager stores `machine_key()` in the record; the worker compares. Stored flags all have to be here, more may
be."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

# What a compiler that is told -march=native may use, and oneDNN chooses code by. A CPU without one of them would stop
# the worker with an illegal instruction in the middle of a request.
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
            "torch": torch.__version__,
            "device": "cuda",
            "capability": f"{major}.{minor}",
            "cuda": torch.version.cuda,
        }
    present = cpu_flags(cpuinfo)
    return {"torch": torch.__version__, "device": "cpu", "isa": sorted(filter(ISA_FLAGS.fullmatch, present))}


def machine_mismatches(key: Mapping[str, Any], device: torch.device, cpuinfo: Path = CPUINFO) -> list[str]:
    """In which points this machine does not fit the key; empty when the artifact may run here."""
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
    """What the CPU can do, as Linux calls it."""
    for line in cpuinfo.read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):  # x86, arm64
            return set(value.split())
    return set()
