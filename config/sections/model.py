"""The sections of a spec about what is served: the model and its inputs."""

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from marina.config.cpu_targets import CpuTarget
from marina.config.sections.encoding import Encoding
from marina.config.sections.section import Count, Filled, Identifier, Natural, Section, Share
from marina.config.sections.varying import Varying

Precision = Literal["bf16", "fp16", "fp32", "int4", "int8"]
Dtype = Literal["bool", "float32", "float64", "int32", "int64", "uint8"]


class Image(Section):
    """How a picture becomes the model's input; models of torchvision have it built in, others need it."""

    height: Count
    """Rows of the model's input, pixels. Lands in the record of the MAR."""
    width: Count
    """Columns of the model's input, pixels. Lands in the record of the MAR."""
    resize: Count | None = None
    """The shorter side is scaled to this many pixels before the centre is cut out; default: the longer of `height`
    and `width`. Lands in the record of the MAR."""
    channels: Literal[1, 3] = 3
    """3 is RGB, 1 is greyscale. Lands in the record and the compiled graph."""
    mean: tuple[float, ...] = (0.0,)
    """Subtracted from each channel after scaling to 0..1; one number, or one for each channel. Compiled into the
    graph."""
    std: tuple[Annotated[float, Field(gt=0)], ...] = (1.0,)
    """Each channel is divided by it after `mean`; one number, or one for each channel. Compiled into the graph."""
    interpolation: Literal["bicubic", "bilinear", "nearest"] = "bilinear"
    """How pixels are scaled. Lands in the record of the MAR."""
    top_k: Natural = 5
    """The most classes that an answer names; 0, for handlers of your own, leaves the network's outputs as they are.
    Compiled into the graph."""
    max_pixels: Annotated[int, Field(ge=1, le=1_000_000_000)] = 40_000_000
    """Larger pictures are refused before they are decoded, pixels; also those that need more than 4 bytes for each of
    these pixels to be decoded: a baseline JPEG takes little at any size, a progressive one 3 to 6 bytes a pixel, PNG 4
    to 7, WebP 18. Lands in the record of the MAR."""

    @model_validator(mode="after")
    def _one_value_for_each_channel(self) -> "Image":
        for field in ("mean", "std"):
            if len(getattr(self, field)) not in (1, self.channels):
                raise ValueError(f"{field}|allowed: 1 number or {self.channels}, one for each channel")
        return self

    def per_channel(self, values: tuple[float, ...]) -> list[float]:
        """`mean` or `std` with one number for each channel."""
        return list(values) if len(values) == self.channels else list(values) * self.channels


class Tensor(Section):
    """One named input of a `tensor` model, without its batch dimension."""

    shape: tuple[Count | Varying, ...] = ()
    """Size of each dimension after the batch; `[]` is a scalar. One dimension may vary from request to request:
    `[{max: 512, buckets: [32, 128, 512]}]` or `[{max: 512, buckets: dynamic}]`. Lands in the record and the compiled
    graph."""
    mask_of: Identifier | None = None
    """Makes this input the mask of another one that varies: clients do not send it; it is 1 where that input has values
    and 0 where it is padding. A mask has no `shape`. Lands in the record."""
    dtype: Dtype = "float32"
    """Element type. Lands in the record and the compiled graph."""
    min: float | None = None
    """Values below it are refused with 422; default: no limit, but 0 for rows of a table. Lands in the record of the
    MAR."""
    max: float | None = None
    """Values above it are refused with 422; default: no limit, but the last row for rows of a table, such as words of
    an embedding. Lands in the record of the MAR."""

    @property
    def varying(self) -> Varying | None:
        """The dimension that varies; None if none does."""
        return next((side for side in self.shape if isinstance(side, Varying)), None)

    @property
    def largest_shape(self) -> tuple[int, ...]:
        """The shape, with the dimension that varies at its largest."""
        return tuple(side.max if isinstance(side, Varying) else side for side in self.shape)


class Model(Section):
    """What is served."""

    source: Filled
    """`torchvision:NAME`, `./file.py:factory`, `./program.pt2` (torch.export) or `hf:./folder`, a model as
    `transformers` saves it. Read by `marina package`."""
    weights: Filled | None = None
    """`random` (always the same), a torchvision weights name such as `IMAGENET1K_V2`, or a `.safetensors`, `.pt`,
    `.pth` or `.ckpt` state dict or checkpoint; a `.pt2` program and a `hf:` folder contain theirs. Read by
    `marina package`."""
    handler: str = "image"
    """`image`, `tensor`, `text`, or a handler of your own as `./file.py:Class`. Lands in the MAR's entry module."""
    files: tuple[str, ...] = ()
    """Files that a handler of your own reads, such as its vocabulary. Land in the folder `files` of the MAR."""
    task: Literal["classify", "embed", "rerank", "tokens"] | None = None
    """What an encoder from a `hf:` folder answers. classify: the most likely labels of a text; embed: its embedding;
    rerank: how well documents fit a query; tokens: a label for each token. Compiled into the graph."""
    encoding: Encoding | None = None
    """How an encoder reads texts."""
    image: Image | None = None
    """Input of an `image` model; default for torchvision: what the model's weights need."""
    inputs: Annotated[dict[Identifier, Tensor], Field(min_length=1)] | None = None
    """Inputs by name, in the order of the model's arguments; needed by `tensor`, and by a handler of your own unless
    there is an `image`."""
    outputs: Annotated[tuple[Identifier, ...], Field(min_length=1)] | None = None
    """Names of the model's outputs, in order; default: `output`, or `output_0`, `output_1` … Lands in the record."""
    labels: Filled | None = None
    """`imagenet`, or a text file with one label on each line; default: answers have no labels. Lands in the MAR."""
    precision: Precision = "fp32"
    """fp32, bf16 or int8 on cpu, and int4 for a compiled `text` model; fp32, fp16 or bf16 on cuda. Compiled into the
    artifact."""
    compile: Literal["aot", "eager", "export", "jit"] = "aot"
    """aot: compiled when it is packaged; jit: compiled when a worker starts, from a packed cache; export: the exported
    program runs uncompiled; eager: not exported either: the worker runs the files of `./file.py:factory`, or, for a
    `text` model, torch's own kernels."""
    cpu_target: CpuTarget = "native"
    """The CPUs that it is compiled for. native: CPUs like the packaging machine's; x86-64-v3: all with AVX2;
    x86-64-v4: all with AVX-512; amx: Sapphire Rapids and later. Compiled into the artifact; lands in its key and in the
    Deployment's node affinity."""
    batch_sizes: Annotated[tuple[Count, ...], Field(min_length=1)] = (1, 4)
    """The batch sizes that are compiled, and run once before a worker is ready, in rows; a batch is cut and padded to
    them. Lands in the MAR."""
    calibration: Filled | None = None
    """Folder of pictures, of `.npy` inputs, or of `.txt` files with one text on each line: int8 is calibrated with
    them, and every artifact is checked on them. It needs as many as the largest of `batch_sizes`. For a `text` model:
    texts that it should know better than by guessing."""
    min_agreement: Share = 0.99
    """Share of the checked inputs that must get the same answer from the artifact as from the eager fp32 model (image:
    the same top class; tensor: within 5 % of its largest value); with fewer, no MAR is written."""

    @field_validator("batch_sizes")
    @classmethod
    def _ascending(cls, sizes: tuple[int, ...]) -> tuple[int, ...]:
        if list(sizes) != sorted(set(sizes)):
            raise ValueError("allowed: different sizes in ascending order")
        return sizes

    @field_validator("outputs")
    @classmethod
    def _different(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if names and len(set(names)) < len(names):
            raise ValueError("allowed: a different name for each output")
        return names

    @property
    def folder(self) -> str | None:
        """The folder of a model as `transformers` saves it; None for any other source."""
        return self.source.removeprefix("hf:") if self.source.startswith("hf:") else None

    @property
    def writes(self) -> bool:
        """Whether it is a language model, which answers token by token."""
        return self.handler == "text" and self.task is None

    @property
    def from_torchvision(self) -> bool:
        """Whether the source is the name of a torchvision model."""
        return self.source.startswith("torchvision:")
