"""The section of a spec about vLLM, which writes a model's tokens in a Python of its own."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr, StringConstraints

from config.sections.section import ABSOLUTE, Seconds, Section


class Vllm(Section):
    """How vLLM is run."""

    python: Annotated[str, StringConstraints(pattern=ABSOLUTE)] = "/opt/vllm/bin/python"
    """The Python that has vLLM installed, on the serving machine; default: that of the `vllm` image. Lands in the
    record."""
    weights: Annotated[str, StringConstraints(pattern=ABSOLUTE)] | None = None
    """The folder of the model on the serving machine, such as the mount of a volume; its files must be those of
    `model.source`. Default: it is packed into the MAR. Lands in the record."""
    check: Literal["head", "whole"] = "head"
    """How a worker that starts compares `weights` with what was packaged. head: by names, sizes and the first MiB of
    each file; whole: by the sha256 of all of it, which reads everything once more. Lands in the record."""
    args: dict[str, StrictBool | StrictInt | StrictFloat | StrictStr] = Field(default={})
    """Arguments of vLLM's engine, by the names of its command line with `_` for `-`: `{tensor_parallel_size: 2,
    quantization: awq}`. Land in the record."""
    step_timeout_s: Seconds = 120
    """If vLLM gives nothing for so long while answers are open, it is ended and started again, s. Lands in the
    record."""

    @property
    def gpus(self) -> int:
        """GPUs that the arguments ask for."""
        return int(self.args.get("tensor_parallel_size", 1)) * int(self.args.get("pipeline_parallel_size", 1))
