"""Compiling for other CPUs than the one here: what g++, Inductor and oneDNN are told so that nothing of this machine
gets into an artifact that an older one cannot run."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from config.cpu_targets import FLAGS, CpuTarget
from config.errors import SourceError, listed
from config.spec import Spec
from handlers.machine import cpu_flags

# What `-march` is told; AMX is a step of its own above v4, which Inductor's own flags add.
_MARCH = {"x86-64-v3": "x86-64-v3", "x86-64-v4": "x86-64-v4", "amx": "x86-64-v4"}
# oneDNN lays weights out for the best CPU that it knows of, and torch's own kernels are chosen likewise; both read this
# when they are first used.
_CEILINGS = {
    "x86-64-v3": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"},
    "x86-64-v4": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "ATEN_CPU_CAPABILITY": "avx512"},
    "amx": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_AMX", "ATEN_CPU_CAPABILITY": "avx512"},
}
# Without VNNI, products of two int8 are summed in 16 bits: they need a bit of room.
WITHOUT_VNNI = ("x86-64-v3", "x86-64-v4")


_AVX512 = "-mavx512f -mavx512dq -mavx512vl -mavx512bw -mfma"
_AMX = f"{_AVX512} -mavx512vnni -mavx512bf16 -mamx-tile -mamx-bf16 -mamx-int8"


def check_machine(spec: Spec, cpuinfo: Path | None = None) -> None:
    """SourceError unless this machine can run what it is to compile: every artifact is tried here."""
    target = spec.model.cpu_target
    missing = sorted(set(FLAGS.get(target, ())) - cpu_flags(*([cpuinfo] if cpuinfo else [])))
    if missing:
        raise SourceError(
            f"{spec.file}: `model.cpu_target`: got `{target}`, but this machine ({platform.machine()}) lacks "
            f"{listed(missing)}, and an artifact is tried where it is made",
            hint="package on a machine that has them, or take a lower target",
        )


@contextmanager
def targeting(target: CpuTarget) -> Iterator[None]:
    """While it lasts, torch sees no more of this CPU than the target has."""
    if target == "native":
        yield
        return
    before = {name: os.environ.get(name) for name in _CEILINGS[target]}
    # Imported here and not above: the compiler costs a second.
    cpu_vec_isa: Any = import_module("torch._inductor.cpu_vec_isa")
    known = cpu_vec_isa.valid_vec_isa_list
    os.environ.update(_CEILINGS[target])
    isa = _instruction_set(cpu_vec_isa, target)
    cpu_vec_isa.valid_vec_isa_list = lambda: [isa]
    try:
        yield
    finally:
        cpu_vec_isa.valid_vec_isa_list = known
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _instruction_set(cpu_vec_isa: Any, target: CpuTarget) -> Any:
    """What Inductor vectorises for. Its own AVX-512 and AMX add what the compiling machine has besides."""
    if target == "x86-64-v3":
        return cpu_vec_isa.VecAVX2()
    isa = cpu_vec_isa.VecAMX() if target == "amx" else cpu_vec_isa.VecAVX512()
    isa.build_arch_flags = lambda: _AMX if target == "amx" else _AVX512
    isa.is_avx512_bf16_supported = lambda: target == "amx"
    isa.is_amx_fp16_supported = lambda: False
    return isa


def compiler_flags(target: CpuTarget) -> list[str]:
    """What the compiler is told where it is called directly."""
    return [f"-march={_MARCH.get(target, 'native')}", *(_AMX.split() if target == "amx" else [])]


def compiler_settings(target: CpuTarget) -> dict[str, object]:
    """Inductor's settings for it."""
    return {} if target == "native" else {"cpp.march": _MARCH[target]}


def key_of(target: CpuTarget, key: dict[str, object]) -> dict[str, object]:
    """The key of an artifact: of this machine, or of what the target needs and no more."""
    return key if target == "native" else key | {"target": target, "isa": list(FLAGS[target])}
