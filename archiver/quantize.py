"""Quantises to int8 on x86 by torchao's PT2E flow, calibrated on real inputs; Inductor lowers it to VNNI or AMX.

The weights of language models are rounded when they are loaded, in `handlers/generation/engines/compiled.py`."""

import logging

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def quantize(program: ExportedProgram, batches: list[tuple[torch.Tensor, ...]], *, reduce_range: bool) -> nn.Module:
    """The program with int8 weights and activations, whose ranges are observed on `batches`. With `reduce_range`,
    activations have 7 bits, for CPUs that sum products of int8 in 16 bits."""
    import_torchao()
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer.x86_inductor_quantizer import (
        X86InductorQuantizer,
        get_default_x86_inductor_quantization_config,
    )

    quantizer = X86InductorQuantizer()
    quantizer.set_global(get_default_x86_inductor_quantization_config(reduce_range=reduce_range))
    observed = prepare_pt2e(program.module(), quantizer)
    with torch.no_grad():
        for batch in batches:
            observed(*batch)
    converted: nn.Module = convert_pt2e(observed)
    _drop_unused(converted)
    return converted


def quantised_kind(network: nn.Module) -> str | None:
    """The class of a layer or a tensor of a network that is quantised already; None if there is none."""
    for part in (*network.modules(), *network.parameters(), *network.buffers()):
        # These functions of floats are in a package of that name, too.
        in_package = type(part).__module__.startswith("torch.ao.") and ".quantized." in type(part).__module__
        if is_traceable_wrapper_subclass(part) or (in_package and not type(part).__name__.endswith("FloatFunctional")):
            return type(part).__name__
    return None


def silence_torchao() -> None:
    """Call it before anything that imports torchao, which logs each CUDA extension that a CPU build of torch cannot
    load."""
    for name in ("torchao", "torch.utils._pytree"):
        logging.getLogger(name).setLevel(logging.ERROR)


def import_torchao() -> None:
    """Registers the operators of int8 programs, which takes seconds."""
    silence_torchao()
    import torchao.quantization.pt2e.quantizer.x86_inductor_quantizer  # noqa: F401


def _drop_unused(module: nn.Module) -> None:
    """Deletes the fp32 weights that int8 ones replaced; they would be most of the exported program's size."""
    used = {str(node.target) for node in module.graph.nodes if node.op == "get_attr"}  # type: ignore[union-attr]
    for path, owner in list(module.named_modules()):
        for table in (owner._parameters, owner._buffers):
            for name in [name for name in table if f"{path}.{name}".lstrip(".") not in used]:
                del table[name]
