"""Descriptions of weights that oneDNN has packed, without the bytes that nobody wrote.

AOTInductor writes such a description, a C structure, into the library that it compiles. Between its fields are gaps for
alignment, and in them stands what was on the stack: parts of addresses, other ones in every process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

# `dnnl_memory_desc` of oneDNN 3, as torch serialises it: its size, and the gaps behind `data_type` and `format_kind`.
_BYTES, _GAPS = 772, (range(0x6C, 0x70), range(0x13C, 0x140))


@contextmanager
def reproducible_descriptors() -> Iterator[None]:
    """While it lasts, Inductor describes packed weights by the same bytes in every process."""
    # Imported here: Inductor's code generators take a second, and only `compile: aot` needs them.
    from torch._inductor.codegen import cpp_wrapper_cpu

    generator: Any = cpp_wrapper_cpu.CppWrapperCpu
    written = generator.codegen_shape_tuple

    def reproducible(wrapper: object, values: Sequence[Any]) -> str:
        if len(values) == _BYTES:
            values = [0 if any(at in gap for gap in _GAPS) else value for at, value in enumerate(values)]
        text: str = written(wrapper, values)
        return text

    generator.codegen_shape_tuple = reproducible
    try:
        yield
    finally:
        generator.codegen_shape_tuple = written
