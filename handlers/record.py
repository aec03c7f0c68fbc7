"""`marina.json`, the record that the packager leaves in the MAR: read once, frozen, missing keys are errors.

Unknown keys are ignored, so that an older handler can open a newer package of the same schema."""

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

RECORD_FILE = "marina.json"
SCHEMA = "marina.package/1"
# TorchServe kills the worker over an answer larger than its max_response_size, whose default this is.
DEFAULT_MAX_RESPONSE_BYTES = 6_553_500


class RecordError(Exception):
    """The package is broken or does not fit this server: the worker must not start."""


@dataclass(frozen=True)
class TensorSpec:
    """One input or output of the compiled function, without the batch dimension."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    min: float | None = None
    max: float | None = None
    varies: int | None = None
    """The dimension that varies from request to request; `shape` has its largest size."""
    pad: float | None = None

    @property
    def padding(self) -> float:
        """What stands behind a request's length."""
        return self.pad if self.pad is not None else self.min or 0

    def shape_for(self, length: int) -> tuple[int, ...]:
        """The shape in which the dimension that varies has this size."""
        return tuple(length if place == self.varies else side for place, side in enumerate(self.shape))

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether an array of this shape may be sent."""
        if self.varies is None or len(shape) != len(self.shape):
            return shape == self.shape
        return 1 <= shape[self.varies] <= self.shape[self.varies] and shape == self.shape_for(shape[self.varies])

    def shape_text(self) -> str:
        """The shape for a person."""
        sides = (f"1 to {side}" if place == self.varies else str(side) for place, side in enumerate(self.shape))
        return f"[{', '.join(sides)}]"


@dataclass(frozen=True)
class PackedLengths:
    """What a dimension that varies is padded to, and which of the model's arguments says what of it is padding; a
    dynamic one is padded to the longest row only, and its buckets are what is timed."""

    buckets: tuple[int, ...]
    dynamic: bool = False
    mask: int | None = None
    mask_dtype: str = "bool"


@dataclass(frozen=True)
class ImageSpec:
    """How image bytes become the model's uint8 pixels; mean and std are on the 0..1 scale, one per channel."""

    height: int
    width: int
    resize: int
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str
    top_k: int
    max_pixels: int
    max_decode_mb: int = 160


@dataclass(frozen=True)
class EncodingSpec:
    """How an encoder reads texts; `tokenizer` is a file of the package."""

    task: str
    max_tokens: int
    truncate: str
    tokenizer: str


@dataclass(frozen=True)
class PackedSample:
    """A request that the model must answer, relative to the model's folder."""

    file: str
    content_type: str


@dataclass(frozen=True)
class CompiledFile:
    """One AOTInductor package, compiled for exactly one batch size."""

    file: str
    batch: int
    length: int | None = None


@dataclass(frozen=True)
class VllmSpec:
    """How vLLM is run: its Python, arguments of its engine, the folder of the weights where they are not in the
    package, what that holds, and how closely it is looked at."""

    python: str
    weights: str | None
    check: str
    args: Mapping[str, Any]
    step_timeout_s: float
    files: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class TextSpec:
    """How a `text` model is run; `folder` has its tokenizer, its template and its weights, and `ends` are the tokens
    after which it has nothing more to say."""

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
    priority_header: str = "X-Priority"
    vllm: VllmSpec | None = None


@dataclass(frozen=True)
class PackedCode:
    """Source that runs in the worker: a factory in a file of the package, and the weights for what it makes."""

    file: str
    factory: str
    weights: str
    seed: int = 0
    shared: tuple[str, ...] = ()


@dataclass(frozen=True)
class PackedRecord:
    name: str
    version: str
    precision: str
    compile: str
    on_mismatch: str
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


def _section(kind: type[Any], data: Mapping[str, Any], where: str) -> Any:
    types, values = get_type_hints(kind), dict[str, Any]()
    for field in fields(kind):
        if field.name in data:
            values[field.name] = _value(types[field.name], data[field.name], where + field.name)
        elif field.default is MISSING:
            raise RecordError(f"{RECORD_FILE}: `{where}{field.name}`: missing")
    return kind(**values)


def _value(kind: Any, data: Any, where: str) -> Any:
    """What a field of this type holds: a section, several of them, or the value as it is."""
    inner = next((part for part in (kind, *get_args(kind)) if isinstance(part, type) and is_dataclass(part)), None)
    if isinstance(data, list):
        return tuple(
            item if inner is None else _section(inner, item, f"{where}[{index}].") for index, item in enumerate(data)
        )
    return data if inner is None or data is None else _section(inner, data, f"{where}.")


def _check(record: PackedRecord) -> None:
    if record.text is not None:
        return
    if not record.inputs or not record.outputs:
        raise RecordError(f"{RECORD_FILE}: `inputs` and `outputs`: at least one of each is needed")
    if not record.batch_sizes or min(record.batch_sizes) < 1:
        raise RecordError(
            f"{RECORD_FILE}: `batch_sizes`: got {list(record.batch_sizes)}, allowed: one or more sizes from 1"
        )
    if record.image and record.image.resize < max(record.image.height, record.image.width):
        raise RecordError(
            f"{RECORD_FILE}: `image.resize`: got {record.image.resize}, allowed: at least the crop's longer side, "
            f"{max(record.image.height, record.image.width)}"
        )
