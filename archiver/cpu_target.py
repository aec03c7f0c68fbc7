"""Compiles for a CPU other than this machine's: settings of g++, Inductor and oneDNN that keep instructions out of an
artifact that the target does not have."""

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

from marina.config.cpu_targets import FLAGS, CpuTarget
from marina.config.errors import SourceError, listed
from marina.config.machine import environment_with
from marina.config.spec import Spec
from marina.handlers.machine import cpu_flags

# Values for `-march`. AMX has no such level: it is v4 plus the AMX flags, which Inductor adds itself.
_MARCH = {"x86-64-v3": "x86-64-v3", "x86-64-v4": "x86-64-v4", "amx": "x86-64-v4"}
# oneDNN packs weights for the best instruction set of the CPU it runs on, and torch chooses its own kernels by it too.
# These variables limit both; they are read on first use.
_CEILINGS = {
    "x86-64-v3": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"},
    "x86-64-v4": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "ATEN_CPU_CAPABILITY": "avx512"},
    "amx": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_AMX", "ATEN_CPU_CAPABILITY": "avx512"},
}
# Without VNNI, products of int8 values are summed in 16 bits, so activations have to leave one bit free.
WITHOUT_VNNI = ("x86-64-v3", "x86-64-v4")


_AVX512 = "-mavx512f -mavx512dq -mavx512vl -mavx512bw -mfma"
_AMX = f"{_AVX512} -mavx512vnni -mavx512bf16 -mamx-tile -mamx-bf16 -mamx-int8"


def check_cpu_target(spec: Spec, cpuinfo: Path | None = None) -> None:
    """Raises SourceError unless this machine can run the target's instructions, since every artifact is run here."""
    target = spec.model.cpu_target
    missing = sorted(set(FLAGS.get(target, ())) - cpu_flags(*([cpuinfo] if cpuinfo else [])))
    if missing:
        raise SourceError(
            f"{spec.file}: `model.cpu_target`: got `{target}`, but this machine ({platform.machine()}) lacks "
            f"{listed(missing)}, and an artifact is tested on the machine that compiles it",
            hint="package on a machine that has them, or choose a lower target",
        )


@contextmanager
def targeting(target: CpuTarget) -> Iterator[None]:
    """Within this context, torch uses only those instructions of this CPU that the target has."""
    if target == "native":
        yield
        return
    # Imported here because Inductor takes a second to import.
    cpu_vec_isa: Any = import_module("torch._inductor.cpu_vec_isa")
    with environment_with(_CEILINGS[target]):
        isa = _instruction_set(cpu_vec_isa, target)
        with patch.object(cpu_vec_isa, "valid_vec_isa_list", lambda: [isa]):
            yield


def _instruction_set(cpu_vec_isa: Any, target: CpuTarget) -> Any:
    """Inductor's description of the target's vector instructions. Its own AVX-512 and AMX would add further
    instructions that this machine has, so those are overridden."""
    if target == "x86-64-v3":
        return cpu_vec_isa.VecAVX2()
    isa = cpu_vec_isa.VecAMX() if target == "amx" else cpu_vec_isa.VecAVX512()
    isa.build_arch_flags = lambda: _AMX if target == "amx" else _AVX512
    isa.is_avx512_bf16_supported = lambda: target == "amx"
    isa.is_amx_fp16_supported = lambda: False
    return isa


def compiler_flags(target: CpuTarget) -> list[str]:
    """The flags for a C++ compiler that is called directly."""
    return [f"-march={_MARCH.get(target, 'native')}", *(_AMX.split() if target == "amx" else [])]


def compiler_settings(target: CpuTarget) -> dict[str, object]:
    """Inductor's options for the target."""
    return {} if target == "native" else {"cpp.march": _MARCH[target]}


def artifact_key(target: CpuTarget, key: dict[str, object]) -> dict[str, object]:
    """The key that says where an artifact runs: this machine's `key`, or what the target requires."""
    return key if target == "native" else key | {"target": target, "isa": list(FLAGS[target])}
