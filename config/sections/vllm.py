"""The section of a spec about vLLM, which computes a model's tokens in a Python of its own."""

from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr

from marina.config.sections.section import AbsolutePath, Section


class Vllm(Section):
    """How vLLM is run."""

    python: AbsolutePath = "/opt/vllm/bin/python"
    """The Python that has vLLM installed, on the serving machine; default: that of the `vllm` image. Lands in the
    record."""
    weights: AbsolutePath | None = None
    """The model's folder on the serving machine, such as the mount of a volume; its files must be those of
    `model.source`, which a starting worker compares by their names, their sizes and the first MiB of each. Default: the
    model is packed into the MAR. Lands in the record."""
    args: dict[str, StrictBool | StrictInt | StrictFloat | StrictStr] = Field(default={})
    """Arguments of vLLM's engine, by the names of its command line with `_` for `-`: `{tensor_parallel_size: 2,
    quantization: awq}`. Land in the record."""

    @property
    def gpus(self) -> int:
        """How many GPUs the arguments ask for."""
        return int(self.args.get("tensor_parallel_size", 1)) * int(self.args.get("pipeline_parallel_size", 1))
