"""What a compiled artifact needs of the machine it runs on: the key it was made under, and how this machine differs.

The packager stores `machine_key()` in the record; the worker compares. Stored flags all have to be here, more may
be."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

# The vector and matrix extensions that Inductor and oneDNN choose code by.
ISA_FLAGS = (
    "avx2",
    "fma",
    "f16c",
    "avx_vnni",
    "avx512f",
    "avx512bw",
    "avx512dq",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    "asimd",
    "sve",
    "sve2",
    "bf16",
    "i8mm",
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
    present = _cpu_flags(cpuinfo)
    return {"torch": torch.__version__, "device": "cpu", "isa": [flag for flag in ISA_FLAGS if flag in present]}


def differences(key: Mapping[str, Any], device: torch.device, cpuinfo: Path = CPUINFO) -> list[str]:
    """In which points this machine does not fit the key; empty when the artifact may run here."""
    here = machine_key(device, cpuinfo)
    found = [
        f"`{name}`: packaged for `{key.get(name)}`, here `{here[name]}`"
        for name in here
        if name != "isa" and key.get(name) != here[name]
    ]
    if missing := sorted(set(key.get("isa", ())) - _cpu_flags(cpuinfo)) if device.type == "cpu" else []:
        found.append(f"`isa`: this CPU lacks `{'`, `'.join(missing)}`")
    return found


def _cpu_flags(cpuinfo: Path) -> set[str]:
    for line in cpuinfo.read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):  # x86, arm64
            return set(value.split())
    return set()
