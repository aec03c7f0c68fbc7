"""Reads `marina.json`, the record that the packager leaves in the MAR. A missing key is an error.

Unknown keys are ignored, so that an older handler can open a newer package of the same schema."""

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

RECORD_FILE = "marina.json"
SCHEMA = "marina.package/1"
# The default of TorchServe's max_response_size; it kills a worker whose answer is larger.
DEFAULT_MAX_RESPONSE_BYTES = 6_553_500


class RecordError(Exception):
    """The package is broken or does not fit this server, so the worker must not start."""


@dataclass(frozen=True)
class TensorSpec:
    """One input or output of the compiled function, without the batch dimension."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    min: float | None = None
    max: float | None = None
    columns: tuple[tuple[float | None, float | None], ...] | None = None
    """The `min` and `max` of each column, the last dimension, if they have different ones."""
    varies: int | None = None
    """The dimension that varies from request to request; `shape` has its largest size."""
    pad: float | None = None
    """The value for padding; None means `min`, or else 0."""

    @property
    def padding(self) -> float:
        """The value that fills up a row beyond the request's own length."""
        return self.pad if self.pad is not None else self.min or 0

    def shape_for(self, length: int) -> tuple[int, ...]:
        """The shape with this size in the dimension that varies."""
        return tuple(length if place == self.varies else side for place, side in enumerate(self.shape))

    def fits(self, shape: tuple[int, ...]) -> bool:
        """True if a request may send an array of this shape."""
        if self.varies is None or len(shape) != len(self.shape):
            return shape == self.shape
        return 1 <= shape[self.varies] <= self.shape[self.varies] and shape == self.shape_for(shape[self.varies])

    def shape_text(self) -> str:
        """The shape for messages."""
        sides = (f"1 to {side}" if place == self.varies else str(side) for place, side in enumerate(self.shape))
        return f"[{', '.join(sides)}]"


@dataclass(frozen=True)
class PackedLengths:
    """The lengths to which a dimension that varies is padded."""

    buckets: tuple[int, ...]
    """The lengths that are compiled. If `dynamic`, only those that are timed."""
    dynamic: bool = False
    """Rows are padded only to the longest one among them."""
    mask: int | None = None
    """The position of the model's argument that marks what is no padding."""
    mask_dtype: str = "bool"


@dataclass(frozen=True)
class DetectionSpec:
    """What the outputs of a detector mean, and which boxes are answered: the spec's `model.detection`."""

    boxes: str
    unit: str
    background: str | None
    min_score: float
    max_boxes: int
    overlap: float | None


@dataclass(frozen=True)
class ImageSpec:
    """How image bytes become the model's uint8 pixels. `mean` and `std` are on the scale from 0 to 1, one per
    channel."""

    height: int
    width: int
    resize: int
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str
    top_k: int
    max_pixels: int
    fit: str = "crop"
    fill: int = 114
    task: str = "classify"
    activation: str = "softmax"
    detection: DetectionSpec | None = None
    mask_size: str = "input"


@dataclass(frozen=True)
class EncodingSpec:
    """How an encoder reads texts; `tokenizer` is a file in the package."""

    task: str
    max_tokens: int
    truncate: str
    tokenizer: str
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    is_normalised: bool = False
    mask: str | None = None


@dataclass(frozen=True)
class SoundSpec:
    """How sound is read and answered; `settings` and `weights` are files in the package."""

    task: str
    family: str
    rate: int
    max_seconds: float
    least: int
    settings: str
    weights: str | None = None


@dataclass(frozen=True)
class PackedSample:
    """A request that the model must answer; `file` is relative to the model's folder."""

    file: str
    content_type: str


@dataclass(frozen=True)
class CompiledFile:
    """An AOTInductor package, compiled for one batch size and, if lengths vary, for one length."""

    file: str
    batch: int
    length: int | None = None


@dataclass(frozen=True)
class VllmSpec:
    """How vLLM is run."""

    python: str
    weights: str | None
    """The folder of the weights; None if they are in the package."""
    args: Mapping[str, Any]
    """Arguments of vLLM's engine."""
    files: Mapping[str, Mapping[str, Any]]
    """The files that the packager saw in `weights`."""


@dataclass(frozen=True)
class TextSpec:
    """How a `text` model is run. `folder` holds its tokenizer, its chat template and its weights; `ends` are the tokens
    that end an answer."""

    folder: str
    engine: str
    context: int
    slots: int
    waiting: int
    prefill_chunk: int
    max_tokens: int
    flush_ms: float
    step_ms: float
    speculation: str
    ends: tuple[int, ...]
    vllm: VllmSpec | None = None
    tools: str = "auto"
    """The form of its calls of tools; auto: as its chat template tells."""
    defaults: Mapping[str, float] = field(default_factory=dict)
    """The model's own values for parameters that a request leaves out."""


@dataclass(frozen=True)
class PackedCode:
    """Source code that runs in the worker: a factory in a file of the package, and the weights for the network that it
    returns. `shared` are names of tensors that are saved under another name."""

    file: str
    factory: str
    weights: str
    seed: int = 0
    shared: tuple[str, ...] = ()


@dataclass(frozen=True)
class PackedArchive:
    """An archive that was made for TorchServe: the folder of its files, its handler as its manifest names it, and what
    TorchServe was told about it."""

    folder: str
    handler: str
    name: str
    envelope: str | None = None


@dataclass(frozen=True)
class PackedRecord:
    name: str
    version: str
    precision: str
    compile: str
    device: str
    threads: int
    image: ImageSpec | None
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    labels: str | None
    max_request_bytes: int
    sample: PackedSample | None
    key: Mapping[str, Any]
    artifacts: tuple[CompiledFile, ...]
    program: str | None
    cache: str | None
    batch_sizes: tuple[int, ...]
    encoding: EncodingSpec | None = None
    max_response_bytes: int = DEFAULT_MAX_RESPONSE_BYTES
    text: TextSpec | None = None
    code: PackedCode | None = None
    lengths: PackedLengths | None = None
    archive: PackedArchive | None = None
    sound: SoundSpec | None = None
    trust_pickle: bool = False


def load_record(directory: Path) -> PackedRecord:
    path = directory / RECORD_FILE
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError) as err:
        raise RecordError(f"{RECORD_FILE}: cannot be read: {err}") from err
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        got = data.get("schema") if isinstance(data, dict) else type(data).__name__
        raise RecordError(f"{RECORD_FILE}: `schema`: got `{got}`, allowed: `{SCHEMA}`")
    return parse_record(data)


def parse_record(data: Mapping[str, Any]) -> PackedRecord:
    record: PackedRecord = _section(PackedRecord, data, "")
    _check(record)
    return record


def parse_image(data: Mapping[str, Any]) -> ImageSpec:
    """The record's `image` alone."""
    spec: ImageSpec = _section(ImageSpec, data, "image.")
    return spec


def _section(kind: type[Any], data: Mapping[str, Any], where: str) -> Any:
    types, values = get_type_hints(kind), dict[str, Any]()
    for part in fields(kind):
        if part.name in data:
            values[part.name] = _value(types[part.name], data[part.name], where + part.name)
        elif part.default is MISSING and part.default_factory is MISSING:
            raise RecordError(f"{RECORD_FILE}: `{where}{part.name}`: missing")
    return kind(**values)


def _value(kind: Any, data: Any, where: str) -> Any:
    """Converts the JSON value of a field: to a section, to a tuple, or not at all."""
    inner = next((part for part in (kind, *get_args(kind)) if isinstance(part, type) and is_dataclass(part)), None)
    if isinstance(data, list):
        return tuple(
            item if inner is None else _section(inner, item, f"{where}[{index}].") for index, item in enumerate(data)
        )
    return data if inner is None or data is None else _section(inner, data, f"{where}.")


def _check(record: PackedRecord) -> None:
    if record.text is not None or record.archive is not None:
        return
    if not record.inputs or not record.outputs:
        raise RecordError(f"{RECORD_FILE}: `inputs` and `outputs`: at least one of each is needed")
    if not record.batch_sizes or min(record.batch_sizes) < 1:
        raise RecordError(
            f"{RECORD_FILE}: `batch_sizes`: got {list(record.batch_sizes)}, allowed: one or more sizes from 1"
        )
    is_cut = record.image is not None and record.image.fit != "letterbox"
    if record.image and is_cut and record.image.resize < max(record.image.height, record.image.width):
        raise RecordError(
            f"{RECORD_FILE}: `image.resize`: got {record.image.resize}, allowed: at least the crop's longer side, "
            f"{max(record.image.height, record.image.width)}"
        )
