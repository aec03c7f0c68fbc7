"""Descriptions of weights that oneDNN has packed, without the bytes that nobody wrote.

AOTInductor writes such a description, a C structure, into the library that it compiles. Between its fields are gaps for
alignment, and in them stands what was on the stack: parts of addresses, other ones in every process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

# `dnnl_memory_desc` of oneDNN 3, as torch serialises it: its size, and the gaps behind `data_type` and `format_kind`.
_BYTES, _GAPS = 772, (slice(0x6C, 0x70), slice(0x13C, 0x140))


@contextmanager
def reproducible_descriptors() -> Iterator[None]:
    """While it lasts, torch describes packed weights by the same bytes in every process."""
    operators: Any = torch.ops.mkldnn
    describe = operators._get_mkldnn_serialized_md

    def reproducible(weight: torch.Tensor) -> torch.Tensor:
        description: torch.Tensor = describe(weight)
        if len(description) == _BYTES:
            for gap in _GAPS:
                description[gap] = 0
        return description

    operators._get_mkldnn_serialized_md = reproducible
    try:
        yield
    finally:
        operators._get_mkldnn_serialized_md = describe
