"""Makes the descriptors of weights that oneDNN has packed reproducible, by clearing their uninitialised bytes.

AOTInductor writes such a descriptor, a C struct, into the library that it compiles. The padding between its fields
holds whatever was on the stack: parts of addresses, which differ from process to process."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

# `dnnl_memory_desc` of oneDNN 3 as torch serialises it: its size, and the padding after `data_type` and `format_kind`.
_BYTES, _GAPS = 772, (range(0x6C, 0x70), range(0x13C, 0x140))


@contextmanager
def reproducible_descriptors() -> Iterator[None]:
    """Within this context, Inductor writes the same bytes for a packed weight's descriptor in every process."""
    # Imported here because Inductor's code generators take a second to import, and only `compile: aot` needs them.
    from torch._inductor.codegen import cpp_wrapper_cpu

    generator: Any = cpp_wrapper_cpu.CppWrapperCpu
    original = generator.codegen_shape_tuple

    def reproducible(wrapper: object, values: Sequence[Any]) -> str:
        if len(values) == _BYTES:
            values = [0 if any(at in gap for gap in _GAPS) else value for at, value in enumerate(values)]
        text: str = original(wrapper, values)
        return text

    with patch.object(generator, "codegen_shape_tuple", reproducible):
        yield
