"""The CPU targets that a model may be compiled for: the flags that Linux shows for each, and the labels that Node
Feature Discovery gives to nodes that have them."""

from collections.abc import Collection
from typing import Literal

CpuTarget = Literal["native", "x86-64-v3", "x86-64-v4", "amx"]

_V3 = ("abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe")
_V4 = (*_V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")
_AMX = (*_V4, "amx_bf16", "amx_int8", "amx_tile", "avx512_bf16", "avx512_vnni")
# The instructions that the compiler may use; oneDNN chooses its own by the CPU it runs on.
FLAGS: dict[str, tuple[str, ...]] = {
    target: tuple(sorted(flags)) for target, flags in (("x86-64-v3", _V3), ("x86-64-v4", _V4), ("amx", _AMX))
}
# The flags for which Node Feature Discovery sets labels by default.
_LABELLED = {
    "amx_bf16": "AMXBF16",
    "amx_int8": "AMXINT8",
    "amx_tile": "AMXTILE",
    "avx2": "AVX2",
    "avx512_bf16": "AVX512BF16",
    "avx512_vnni": "AVX512VNNI",
    "avx512bw": "AVX512BW",
    "avx512cd": "AVX512CD",
    "avx512dq": "AVX512DQ",
    "avx512f": "AVX512F",
    "avx512vl": "AVX512VL",
    "fma": "FMA3",
}
_PREFIX = "feature.node.kubernetes.io/cpu-cpuid."


def architecture_of(isa: Collection[str]) -> str | None:
    """The `kubernetes.io/arch` of a CPU with such flags; None without any."""
    return None if not isa else "arm64" if "asimd" in isa else "amd64"


def node_labels(target: CpuTarget) -> dict[str, str]:
    """The labels that Node Feature Discovery gives to a node that can run the target; none for `native`."""
    return {_PREFIX + _LABELLED[flag]: "true" for flag in FLAGS.get(target, ()) if flag in _LABELLED}
