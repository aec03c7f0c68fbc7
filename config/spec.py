"""The spec: what is served and how well, as one frozen record.

Types, defaults and the meaning of each field live here; what fields may not be together is in `combinations`,
reading a file is in `load`. `docs/01-spec.md` is generated from the docstrings under the fields.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr, field_validator, model_validator

from config.deployment import Kubernetes, Scaling
from config.quantity import quantity
from config.section import Count, Identifier, Name, Seconds, Section, Share, Version

# What the handlers' limit on the values of a JSON body comes to.
_JSON_MB = 116
Dtype = Literal["bool", "float32", "float64", "int32", "int64", "uint8"]


class Image(Section):
    """How an image becomes the model's input; torchvision models bring their own, other sources state it."""

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
    """Subtracted from each channel after scaling to 0..1; one number, or one a channel. Compiled into the graph."""
    std: tuple[Annotated[float, Field(gt=0)], ...] = (1.0,)
    """Divides each channel after `mean`; one number, or one a channel. Compiled into the graph."""
    interpolation: Literal["bicubic", "bilinear", "nearest"] = "bilinear"
    """How pixels are scaled. Lands in the record of the MAR."""
    top_k: Annotated[int, Field(ge=0)] = 5
    """How many classes an answer names; 0, for handlers of your own, leaves the network's outputs as they are. Compiled
    into the graph."""
    max_pixels: Count = 40_000_000
    """Larger images are refused before they are decoded, pixels. Lands in the record of the MAR."""
    max_decode_mb: Annotated[int, Field(ge=32, le=4096)] = 160
    """Images whose decoding would take more memory are refused before it begins, MB of 1,000,000 bytes. A baseline JPEG
    takes little at any size, a progressive one 3 to 6 bytes a pixel, PNG 4 to 7, WebP 18. Lands in the record of the
    MAR."""

    @model_validator(mode="after")
    def _one_value_a_channel(self) -> Image:
        for field in ("mean", "std"):
            if len(getattr(self, field)) not in (1, self.channels):
                raise ValueError(f"{field}|allowed: 1 number or {self.channels}, one a channel")
        return self

    def per_channel(self, values: tuple[float, ...]) -> list[float]:
        """`mean` or `std` spelt out, one number a channel."""
        return list(values) if len(values) == self.channels else list(values) * self.channels


class Tensor(Section):
    """One named input of a `tensor` model, without its batch dimension."""

    shape: tuple[Count, ...]
    """Size of each dimension after the batch; `[]` is a scalar. Lands in the record and the compiled graph."""
    dtype: Dtype = "float32"
    """Element type. Lands in the record and the compiled graph."""
    min: float | None = None
    """Values below it are refused with 422; default: no limit. Lands in the record of the MAR."""
    max: float | None = None
    """Values above it are refused with 422; default: no limit. Lands in the record of the MAR."""


class Model(Section):
    """What is served."""

    source: Annotated[str, Field(min_length=1)]
    """`torchvision:NAME`, `./file.py:factory` or `./program.pt2` (torch.export). Read by `marina package`."""
    weights: str | None = None
    """`random` (seeded), a torchvision weights name such as `IMAGENET1K_V2`, or a `.safetensors`, `.pt` or `.pth`
    state dict; a `.pt2` program holds its own. Read by `marina package`."""
    handler: str = "image"
    """`image`, `tensor` or `./file.py:Class` of your own. Lands in the MAR's entry module."""
    image: Image | None = None
    """Input of an `image` model; default for torchvision: the preset of the model's weights."""
    inputs: dict[Identifier, Tensor] | None = None
    """Inputs by name, in the order of the model's arguments; needed by `tensor`, and by own handlers
    without `image`."""
    outputs: tuple[Identifier, ...] | None = None
    """Names of the model's outputs, in order; default: `output`, or `output_0`, `output_1` … Lands in the record."""
    labels: str | None = None
    """`imagenet`, or a text file with one label a line; default: answers carry no labels. Lands in the MAR."""
    precision: Literal["bf16", "fp16", "fp32", "int8"] = "fp32"
    """fp32, bf16 or int8 on cpu; fp32, fp16 or bf16 on cuda. Compiled into the artifact."""
    compile: Literal["aot", "eager", "jit"] = "aot"
    """aot: compiled when packaged; jit: compiled when a worker starts, from a shipped cache; eager: not compiled."""
    batch_sizes: Annotated[tuple[Count, ...], Field(min_length=1)] = (1, 4)
    """The batches that are compiled and warmed, rows; a batch is cut and padded to them. Lands in the MAR."""
    calibration: str | None = None
    """Folder of images, or of `.npy` inputs: int8 is calibrated and every artifact is checked on them."""
    min_agreement: Share = 0.99
    """Share of the checked inputs that must get the eager fp32 model's answer (image: the same top class; tensor:
    within `tolerance`); below it no MAR is written."""
    tolerance: Annotated[float, Field(gt=0)] = 0.05
    """For tensor outputs: largest difference allowed, as a share of the largest value of eager's output."""
    on_mismatch: Literal["fail", "jit"] = "fail"
    """When an artifact does not fit the serving machine: refuse to start, or compile there (logged and counted)."""
    seed: Annotated[int, Field(ge=0)] = 0
    """For `random` weights and generated inputs."""

    @field_validator("batch_sizes")
    @classmethod
    def _ascending(cls, sizes: tuple[int, ...]) -> tuple[int, ...]:
        if list(sizes) != sorted(set(sizes)):
            raise ValueError("allowed: different sizes in ascending order")
        return sizes


class Serving(Section):
    """How TorchServe runs it."""

    device: Literal["cpu", "cuda"] = "cpu"
    """Where the model runs. Lands in `model-config.yaml` as `deviceType`."""
    workers: Count | Literal["auto"] = "auto"
    """Worker processes; auto: one for each `threads` of the cpu limit, on cuda one a GPU. Lands in `model-config.yaml`
    as `minWorkers` and `maxWorkers`."""
    threads: Count | Literal["auto"] = "auto"
    """Threads of each worker; auto: what the cpu limit leaves for each worker, 1 when `workers` is auto too. Lands in
    the record; the artifact is compiled for it."""
    max_batch: Count | None = None
    """Requests TorchServe may put in one batch; default: the largest of `batch_sizes`. Lands in `model-config.yaml`
    as `batchSize`."""
    max_batch_delay_ms: Count = 2
    """How long the first request of a batch waits for others, ms. Lands in `model-config.yaml` as `maxBatchDelay`."""
    queue: Count = 200
    """Requests that may wait; further ones are shed with 503. Lands in `model-config.yaml` as `jobQueueSize`."""
    response_timeout_s: Count = 30
    """A worker that does not answer a batch in this time is killed, s. Lands in `model-config.yaml`."""
    startup_timeout_s: Count = 300
    """A worker that is not loaded in this time is killed, s. Lands in `model-config.yaml`."""
    retry_window_s: Count = 600
    """How long a failing worker is started again before it is given up, s; at least `startup_timeout_s` + 60. Lands in
    `model-config.yaml` as `maxRetryTimeoutInSec`."""
    max_request_mb: Annotated[float, Field(gt=0, le=1024)] = 10
    """Larger bodies get 413, MB of 1,000,000 bytes. Lands in the record of the MAR, and 2.5 times as large in
    `config.properties` as `max_request_size`: above that TorchServe itself answers 413, without a body."""
    max_response_mb: Annotated[float, Field(gt=0, le=1024)] = 10
    """Larger answers get 500, MB. Lands in `config.properties` as `max_response_size`."""
    java_heap_mb: Annotated[int, Field(ge=64)] = 512
    """Heap of TorchServe's frontend, MB. Lands in the Java command as `-Xmx`."""
    java_compiler: Literal["auto", "quick", "full"] = "auto"
    """How far Java compiles TorchServe's frontend. Full answers more requests of a tiny model, but compiles for
    minutes, on the cores that the workers need; auto: quick for a MAR above 4 MB. Lands in the Java command as
    `-XX:TieredStopAtLevel`."""
    max_worker_memory_mb: Count | None = None
    """A worker above it is replaced, MB resident; default: no limit. Read by the supervisor."""
    log: Literal["json", "text"] = "text"
    """Form of the log lines. Lands in `log4j2.xml` and the supervisor."""
    access_log: Literal["all", "auto", "errors", "off"] = "auto"
    """Which requests are logged, one line each; auto: all up to `access_log_max_rps`, above it only errors, as many
    a second, and how many more there were. Read by the supervisor."""
    access_log_max_rps: Count = 20
    """Above this rate `access_log: auto` logs errors only, and no more of them, requests/s. Read by the supervisor."""
    drain_propagation_s: Annotated[float, Field(ge=0)] = 5
    """How long a stopping pod still serves while load balancers learn of it, s. Read by the supervisor; lands in the
    Deployment's grace period."""
    drain_timeout_s: Seconds = 30
    """How long requests in flight may take to finish after that, s. Read by the supervisor; lands in the Deployment's
    grace period."""


class Slo(Section):
    """How well it must serve."""

    p99_ms: Annotated[float, Field(gt=0)]
    """99 of 100 requests are answered within it, ms. Judged by the load test; lands in the alerts and dashboard."""
    error_rate: Share = 0.001
    """Largest share of requests that may fail; shed ones count. Judged by the load test; lands in the alerts."""
    throughput_rps: Annotated[float, Field(gt=0)] | None = None
    """Rate that one pod must hold, requests/s; default: the load test's own rate. Judged by the load test."""


class Load(Section):
    """What the load test and the readiness inference send."""

    sample: str | None = None
    """An image, `.json` or `.npy` file; default: one generated from the model's inputs. Lands in the MAR."""


class Spec(Section):
    """One file says what is served and how well; everything else is made from it."""

    name: Name
    """DNS label of at most 40 characters. Names the MAR, the image and every object."""
    version: Version = "1.0"
    """Version of the model, text. Lands in the MAR, the metrics and the labels."""
    model: Model
    """What is served."""
    serving: Serving = Serving()
    """How TorchServe runs it."""
    slo: Slo | None = None
    """How well it must serve; without it nothing is judged."""
    load: Load = Load()
    """What the load test and the readiness inference send."""
    scaling: Scaling = Scaling()
    """How many pods."""
    kubernetes: Kubernetes = Kubernetes()
    """Where it runs."""

    _file: Path = PrivateAttr(default=Path("spec.yaml"))

    @property
    def file(self) -> Path:
        """The file this was read from."""
        return self._file

    @property
    def cores(self) -> float:
        """The cpu limit of a pod, cores."""
        return quantity(self.kubernetes.resources.cpu)

    def path(self, relative: str) -> Path:
        """A path written in the spec: relative ones start at the spec's folder."""
        return self._file.parent / relative

    @property
    def workers(self) -> int:
        """Worker processes, `auto` resolved: a core for each thread; on cuda one a GPU."""
        if isinstance(self.serving.workers, int):
            return self.serving.workers
        if self.serving.device == "cuda":
            return max(1, self.kubernetes.resources.gpu)
        return max(1, self._whole_cores // (self.serving.threads if isinstance(self.serving.threads, int) else 1))

    @property
    def threads(self) -> int:
        """Threads of each worker, `auto` resolved: what the cpu limit leaves for each."""
        if isinstance(self.serving.threads, int):
            return self.serving.threads
        return max(1, self._whole_cores // self.workers)

    @property
    def max_batch(self) -> int:
        """Requests TorchServe may put in one batch, the default resolved."""
        return self.serving.max_batch or max(self.model.batch_sizes)

    @property
    def largest_batch_bytes(self) -> int:
        """What requests may take in a worker at most, beside the model: the bodies of a batch, and the decoding of one
        of them after another."""
        body_bytes = self.serving.max_request_mb * 1_000_000
        decoding_mb = _JSON_MB
        if self.model.handler != "tensor":
            image = self.model.image
            decoding_mb = image.max_decode_mb if image else Image.model_fields["max_decode_mb"].default
        # A picture in base64 is there as the body, as text and as bytes.
        return math.ceil((self.max_batch + 2) * body_bytes + decoding_mb * 1_000_000)

    @property
    def _whole_cores(self) -> int:
        return max(1, math.floor(self.cores))

    def completed(self) -> dict[str, Any]:
        """The spec with every default and every `auto` that needs no measurement filled in, as plain data."""
        data = self.model_dump(mode="json")
        data["serving"] |= {"workers": self.workers, "threads": self.threads, "max_batch": self.max_batch}
        return data
